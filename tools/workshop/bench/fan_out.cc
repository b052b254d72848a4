// One model, many receivers: daemons on separate hosts, each behind a link of a given rate.
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/link_copy.h"
#include "tools/workshop/bench/swarm.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {
namespace {

constexpr int kSource = 0;
// For the global store to hear of replicas that are gone.
constexpr absl::Duration kForgetTimeout = absl::Seconds(60);
constexpr absl::Duration kForgetPoll = absl::Milliseconds(50);
constexpr absl::Duration kLook = absl::Milliseconds(5);  // at what the receivers have

struct Received {
  absl::Status status;
  absl::Duration own_time;  // key resolved to image mapped
  SteadyTime ended;
  std::unique_ptr<client::Replica> replica;
};

// The daemon that the fault of a run was done to.
struct Struck {
  int node = 0;
  SteadyTime when;
};

// Which gets of a run have ended. Thread-safe.
class Ends {
 public:
  explicit Ends(int gets) : ended_(gets) {}
  void Add(int get) {
    absl::MutexLock lock(&mutex_);
    ended_[get] = true;
  }
  // Waits until those of these nodes have; false when that takes longer.
  bool Await(absl::FunctionRef<bool(int get)> counts, absl::Duration patience) {
    const auto have_ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      for (size_t i = 0; i < ended_.size(); ++i) {
        if (!ended_[i] && counts(static_cast<int>(i))) return false;
      }
      return true;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&have_ended), patience);
  }

 private:
  absl::Mutex mutex_;
  std::vector<bool> ended_ ABSL_GUARDED_BY(mutex_);
};

// Of every run, one figure each.
struct Figures {
  Pairs first, median, last, last_other;
  std::vector<double> sent_images, failed, unfairness;
  std::vector<double> given_up_seconds;  // from the fault to the end of the last get that failed
  std::vector<double> pulled_images;     // by a receiver in all, when those that failed had been asked again
};

struct Model {
  std::string key;
  std::vector<std::unique_ptr<client::Replica>> sources;  // of each node that has it from the beginning
  Pairs last;                                             // receiver, of every run
  ConstHostSpan image() const { return sources.front()->image(); }
};

class FanOut {
 public:
  FanOut(const BenchOptions& options, const FanOutOptions& fan_out)
      : options_(options),
        fan_out_(fan_out),
        bytes_(options.BytesOr(264'000'000, 8 * kMiB)),
        runs_(options.RunsOr(3)) {}

  absl::StatusOr<Rows> Run() {
    TC_RETURN_IF_ERROR(CheckOptions());
    TC_ASSIGN_OR_RETURN(network_, Network::Make(Hosts()));
    TC_ASSIGN_OR_RETURN(cluster_,
                        BenchCluster::Start(options_, {.daemons = fan_out_.nodes,
                                                       .pool_bytes = Artifacts() * (bytes_ + 64 * kMiB),
                                                       .tls = options_.tls,
                                                       .network = network_.get()}));
    for (uint64_t i = 0; i < Artifacts(); ++i) {
      Model& model = models_.emplace_back(Model{.key = absl::StrCat("fan-out-", i + 1)});
      TC_RETURN_IF_ERROR(cluster_->ImportModel(model.key, bytes_, /*seed=*/i + 1).status());
      for (int node = 0; node < fan_out_.sources; ++node) {
        TC_ASSIGN_OR_RETURN(model.sources.emplace_back(),
                            cluster_->client(node).Get(options_.context, model.key, {}));
      }
    }
    image_bytes_ = models_.front().image().size();
    for (int host = 0; host < Hosts(); ++host) {
      TC_RETURN_IF_ERROR(network_->Throttle(
          host, HasOtherRate(host) ? fan_out_.slow_bits_per_second : fan_out_.bits_per_second));
    }
    for (int run = 0; run < runs_; ++run) TC_RETURN_IF_ERROR(RunOnce(run));
    for (Model& model : models_) model.sources.clear();
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return MakeRows();
  }

 private:
  absl::Status CheckOptions() const {
    if (fan_out_.sources >= fan_out_.nodes) return absl::InvalidArgumentError("no node is left to receive");
    if (fan_out_.nodes % fan_out_.per_host != 0 || Hosts() < 2) {
      return absl::InvalidArgumentError(absl::StrCat("two hosts or more need as many daemons each, not ",
                                                     fan_out_.nodes, " with ", fan_out_.per_host,
                                                     " on each"));
    }
    if (fan_out_.slow >= Hosts()) {
      return absl::InvalidArgumentError(absl::StrCat("of ", Hosts(), " hosts at most ", Hosts() - 1,
                                                     " can have another rate, not ", fan_out_.slow));
    }
    if (fan_out_.fault && fan_out_.artifacts > 1) {
      return absl::InvalidArgumentError("a fault is measured with one artifact");
    }
    return absl::OkStatus();
  }

  int Hosts() const { return fan_out_.nodes / fan_out_.per_host; }
  bool HasOtherRate(int host) const { return host >= Hosts() - fan_out_.slow; }
  int Receivers() const { return fan_out_.nodes - fan_out_.sources; }
  uint64_t Artifacts() const { return static_cast<uint64_t>(fan_out_.artifacts); }
  int Gets() const { return Receivers() * fan_out_.artifacts; }

  absl::Status RunOnce(int run) {
    Say(absl::StrCat("fan-out: run ", run + 1, " of ", runs_, ": a plain copy, then ", Receivers(),
                     " receivers"));
    TC_ASSIGN_OR_RETURN(const absl::Duration copy,
                        CopyOverLink(options_.context, *network_, kSource, 1, image_bytes_));
    TC_ASSIGN_OR_RETURN(const uint64_t sent_before, network_->SentBytes(kSource));
    TC_ASSIGN_OR_RETURN(const uint64_t sent_by_all_before, SentByAll());
    struck_.reset();
    TC_ASSIGN_OR_RETURN(std::vector<Received> received, ReceiveAll(/*undisturbed=*/!fan_out_.fault));
    TC_RETURN_IF_ERROR(options_.context.Check("bench"));
    TC_ASSIGN_OR_RETURN(const uint64_t sent, network_->SentBytes(kSource));
    TC_RETURN_IF_ERROR(Mend());
    TC_RETURN_IF_ERROR(Add(received, absl::ToDoubleSeconds(copy), sent - sent_before));
    if (struck_ && struck_->node == kSource && HaveFailed(received)) {
      TC_RETURN_IF_ERROR(Resume(sent_by_all_before));
    }
    return Forget(std::move(received));
  }

  // Of the nodes behind the sources, in their order, every artifact in turn.
  // One thread for each get. This thread applies the fault meanwhile; a fault that could not be applied is
  // reported only after all threads were joined.
  absl::StatusOr<std::vector<Received>> ReceiveAll(bool undisturbed) {
    std::vector<Received> received(Gets());
    const SteadyTime start = SteadyNow();
    absl::Notification cancelled;
    const Cancellation::Registration registration =
        options_.context.cancellation.OnCancel([&] { cancelled.Notify(); });
    Ends ends(Gets());
    std::vector<std::thread> receivers;
    for (int i = 0; i < Gets(); ++i) {
      receivers.emplace_back([&, i] {
        const SteadyTime arrives = start + i / fan_out_.artifacts * fan_out_.arrivals;
        if (!cancelled.WaitForNotificationWithTimeout(arrives - SteadyNow())) {
          received[i] = Receive(NodeOf(i), models_[i % fan_out_.artifacts].key);
        }
        ends.Add(i);
      });
    }
    const absl::Status disturbed = undisturbed ? absl::OkStatus() : Disturb(ends);
    // A slow one may take ten times as long.
    if (fan_out_.slow > 0 && !HasOtherRate(HostOf(NodeOf(0)))) {
      ends.Await([this](int get) { return !HasOtherRate(HostOf(NodeOf(get))); }, absl::InfiniteDuration());
      Say(absl::StrFormat("fan-out: all but those at the other rate have ended after %.2f s",
                          absl::ToDoubleSeconds(SteadyNow() - start)));
    }
    for (std::thread& receiver : receivers) receiver.join();
    TC_RETURN_IF_ERROR(disturbed);
    return received;
  }

  // Kills the daemon, or stops it until the others have ended.
  absl::Status Disturb(Ends& ends) {
    TC_ASSIGN_OR_RETURN(const int node, AwaitVictim(ends));
    Say(absl::StrCat("fan-out: node-", node, " is ", fan_out_.fault->kill ? "killed" : "stopped"));
    Process& daemon = cluster_->processes().daemon(node);
    TC_RETURN_IF_ERROR(daemon.Signal(fan_out_.fault->kill ? SIGKILL : SIGSTOP));
    struck_ = {.node = node, .when = SteadyNow()};
    if (fan_out_.fault->kill) return absl::OkStatus();
    ends.Await([this, node](int get) { return NodeOf(get) != node; }, absl::InfiniteDuration());
    return daemon.Signal(SIGCONT);
  }

  // Waits for the moment of the fault; returns the node that it is done to.
  absl::StatusOr<int> AwaitVictim(Ends& ends) {
    const FanOutFault& fault = *fan_out_.fault;
    Swarm swarm(options_.context, cluster_.get(), fan_out_.sources,
                models_.front().sources.front()->artifact_id());
    // Looks at the receivers until they hold enough of the image together, and, for a victim that feeds
    // others, until one of them serves another.
    while (!ends.Await([](int) { return true; }, kLook)) {
      TC_ASSIGN_OR_RETURN(const double held, swarm.ShareHeld());
      if (held < fault.share_held) continue;
      if (fault.victim == FanOutFault::Victim::kSource) return kSource;
      TC_ASSIGN_OR_RETURN(const std::optional<int> feeder, swarm.FindFeeder());
      if (feeder) return *feeder;
    }
    return absl::InternalError("every receiver ended before the fault could be applied");
  }

  // A daemon that was killed runs again, with what it had at the beginning.
  absl::Status Mend() {
    if (!struck_ || !fan_out_.fault->kill) return absl::OkStatus();
    TC_RETURN_IF_ERROR(cluster_->Restart(struck_->node));
    if (struck_->node != kSource) return absl::OkStatus();
    Model& model = models_.front();
    TC_ASSIGN_OR_RETURN(model.sources.front(),
                        cluster_->client(kSource).Get(options_.context, model.key, {}));
    return absl::OkStatus();
  }

  static bool HaveFailed(const std::vector<Received>& received) {
    return std::ranges::any_of(received, [](const Received& one) { return !one.status.ok(); });
  }

  // Now that the source is back, every receiver gets the rest.
  absl::Status Resume(uint64_t sent_by_all_before) {
    Say("fan-out: the source is back, and every receiver gets the rest");
    TC_ASSIGN_OR_RETURN(const std::vector<Received> resumed, ReceiveAll(/*undisturbed=*/true));
    for (const Received& one : resumed) {
      TC_RETURN_IF_ERROR(Annotate(one.status, "with the source back"));
      TC_RETURN_IF_ERROR(Compare(*one.replica, models_.front()));
    }
    TC_ASSIGN_OR_RETURN(const uint64_t sent, SentByAll());
    figures_.pulled_images.push_back(static_cast<double>(sent - sent_by_all_before) /
                                     static_cast<double>(image_bytes_) / Receivers());
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> SentByAll() const {
    uint64_t all = 0;
    for (int host = 0; host < Hosts(); ++host) {
      TC_ASSIGN_OR_RETURN(const uint64_t sent, network_->SentBytes(host));
      all += sent;
    }
    return all;
  }

  static absl::Status Compare(const client::Replica& replica, const Model& model) {
    const auto image = replica.image(), original = model.image();
    if (image.size() == original.size() && std::memcmp(image.data(), original.data(), image.size()) == 0) {
      return absl::OkStatus();
    }
    return absl::DataLossError("a receiver was given other bytes than the source has");
  }

  int HostOf(int node) const { return node / fan_out_.per_host; }
  int NodeOf(int get) const { return fan_out_.sources + get / fan_out_.artifacts; }

  Received Receive(int node, const std::string& key) {
    Received received;
    absl::StatusOr<std::unique_ptr<client::Replica>> replica = absl::UnknownError("not asked for");
    received.own_time =
        Timed([&] { replica = cluster_->client(node).Get(options_.context, key, {.wait_for_space = true}); });
    received.ended = SteadyNow();
    received.status = replica.status();
    if (!replica.ok()) return received;
    received.replica = *std::move(replica);
    const std::optional<TransferReport>& report = received.replica->transfer();
    if (!report || report->verified_chunks == 0) {
      received.status = absl::InternalError("the replica was there before, or nothing of it was verified");
    }
    return received;
  }

  absl::Status Add(const std::vector<Received>& received, double copy, uint64_t sent) {
    std::vector<double> times, other_times, last_of_model(Artifacts());
    last_run_.clear();
    int failed = 0;
    absl::Duration given_up;
    for (int i = 0; i < Gets(); ++i) {
      const int node = NodeOf(i);
      const size_t of_model = i % Artifacts();
      const Received& one = received[i];
      const double seconds = absl::ToDoubleSeconds(one.own_time);
      const bool struck = struck_ && struck_->node == node;
      absl::StrAppendFormat(&last_run_, "%snode-%d%s %s%.2f s", last_run_.empty() ? "" : ", ", node,
                            struck ? " (the victim)" : "", one.status.ok() ? "" : "failed after ", seconds);
      if (!one.status.ok()) {
        if (struck) continue;
        ++failed;
        if (struck_) given_up = std::max(given_up, one.ended - struck_->when);
        failure_ = absl::StrCat("node-", node, ": ", one.status.ToString());
        Say(absl::StrCat("fan-out: ", failure_));
        continue;
      }
      TC_RETURN_IF_ERROR(Annotate(Compare(*one.replica, models_[of_model]), absl::StrCat("node-", node)));
      if (struck) continue;
      (HasOtherRate(HostOf(node)) ? other_times : times).push_back(seconds);
      last_of_model[of_model] = std::max(last_of_model[of_model], seconds);
    }
    if (times.empty() && other_times.empty() && !struck_) {
      return absl::UnavailableError("no receiver succeeded; one of them: " + failure_);
    }
    Say("fan-out: " + last_run_);
    if (!times.empty()) {
      const Summary all = Summarize(times);
      figures_.first.Add(all.min, copy);
      figures_.median.Add(all.median, copy);
      figures_.last.Add(all.max, copy);
    }
    for (size_t i = 0; i < models_.size(); ++i) models_[i].last.Add(last_of_model[i], copy);
    const auto [fastest, slowest] = std::ranges::minmax(last_of_model);
    if (fastest > 0) figures_.unfairness.push_back(slowest / fastest);
    if (!other_times.empty()) figures_.last_other.Add(Summarize(other_times).max, copy);
    figures_.sent_images.push_back(static_cast<double>(sent) / static_cast<double>(image_bytes_));
    figures_.failed.push_back(failed);
    if (struck_ && failed > 0) figures_.given_up_seconds.push_back(absl::ToDoubleSeconds(given_up));
    return absl::OkStatus();
  }

  // Drops what was received, so that the next run has the same sources again.
  absl::Status Forget(std::vector<Received> received) {
    received.clear();
    for (int node = fan_out_.sources; node < fan_out_.nodes; ++node) {
      client::AdminClient& admin = cluster_->admin(node);
      TC_ASSIGN_OR_RETURN(const auto replicas, admin.ListReplicas(options_.context, /*artifact_id=*/""));
      for (const v1::Replica& replica : replicas) {
        TC_RETURN_IF_ERROR(admin.EvictReplica(options_.context, replica.replica_id(), /*force=*/true));
      }
    }
    const SteadyTime deadline = SteadyNow() + kForgetTimeout;
    while (true) {
      TC_ASSIGN_OR_RETURN(const std::vector<v1::Artifact> artifacts,
                          cluster_->admin(kSource).ListArtifacts(options_.context, /*unkeyed_only=*/false,
                                                                 absl::ZeroDuration(), /*replicas=*/true));
      const auto is_forgotten = [this](const v1::Artifact& artifact) {
        return artifact.replicas_size() == fan_out_.sources;
      };
      if (artifacts.size() == models_.size() && std::ranges::all_of(artifacts, is_forgotten)) {
        return absl::OkStatus();
      }
      if (SteadyNow() > deadline) {
        return absl::InternalError("the global store still lists replicas that were dropped");
      }
      TC_RETURN_IF_ERROR(options_.context.Check("bench"));
      absl::SleepFor(kForgetPoll);
    }
  }

  Row MakeRow(std::string metric, std::string unit) const {
    return {.bench = "fan-out",
            .lane = options_.tls ? "tcp, TLS" : "tcp",
            .metric = std::move(metric),
            .bytes = image_bytes_,
            .unit = std::move(unit)};
  }

  Rows MakeRows() {
    Rows rows;
    const std::string reference = absl::StrFormat("a plain copy at %.4g Mbit/s", MegabitsPerSecond());
    const auto add = [&](const char* metric, const Pairs& pairs) {
      if (pairs.values.empty()) return;
      rows.push_back(MakeRow(metric, "s"));
      pairs.Fill(reference, &rows.back());
    };
    add("first receiver", figures_.first);
    add("median receiver", figures_.median);
    add("last receiver", figures_.last);
    add("last receiver at the other rate", figures_.last_other);
    const double computed =
        static_cast<double>(image_bytes_) * 8 / static_cast<double>(fan_out_.bits_per_second);
    if (!rows.empty()) {
      rows.back().note = absl::StrFormat("bytes / rate is %.2f s, the median %.2f of it; last run: %s",
                                         computed, rows.back().value.median / computed, last_run_);
    }
    for (size_t i = 0; i < models_.size() && models_.size() > 1; ++i) {
      add(absl::StrCat("last receiver, artifact ", i + 1).c_str(), models_[i].last);
    }
    if (models_.size() > 1 && !figures_.unfairness.empty()) {
      rows.push_back(MakeRow("last of the slowest artifact to last of the fastest", "ratio"));
      rows.back().value = Summarize(figures_.unfairness);
    }
    rows.push_back(MakeRow("sent by the source", "images"));
    rows.back().value = Summarize(figures_.sent_images);
    if (fan_out_.fault || !failure_.empty()) {
      rows.push_back(MakeRow("failed receivers", "receivers"));
      rows.back().value = Summarize(figures_.failed);
      rows.back().note = failure_;
    }
    if (!figures_.given_up_seconds.empty()) {
      rows.push_back(MakeRow("from the fault to the last failure", "s"));
      rows.back().value = Summarize(figures_.given_up_seconds);
    }
    if (!figures_.pulled_images.empty()) {
      rows.push_back(MakeRow("sent by all hosts for a receiver, with the resumed get", "images"));
      rows.back().value = Summarize(figures_.pulled_images);
    }
    return rows;
  }

  double MegabitsPerSecond() const { return static_cast<double>(fan_out_.bits_per_second) / 1e6; }

  const BenchOptions& options_;
  const FanOutOptions& fan_out_;
  const uint64_t bytes_;
  const int runs_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<BenchCluster> cluster_;
  std::vector<Model> models_;
  uint64_t image_bytes_ = 0;
  Figures figures_;
  std::string last_run_;          // each receiver's time
  std::string failure_;           // the last one
  std::optional<Struck> struck_;  // of the run under way, or the last one
};

}  // namespace

absl::StatusOr<Rows> RunFanOut(const BenchOptions& options, const FanOutOptions& fan_out) {
  return FanOut(options, fan_out).Run();
}

}  // namespace tensorcast::bench
