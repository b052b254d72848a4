// Whether `explain` names a bottleneck that was made on purpose, and its share of the time. Each measurement
// is a cluster of its own on hosts with links of their own: undisturbed, with each fault, and with both.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "cli/explain/hops.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {
namespace {

constexpr int kGiver = 0;
constexpr int kTaker = 1;
constexpr char kExplainedKey[] = "explained";
constexpr char kOverTcp[] = "tcp";
// An answer this close to the measured share is right, and so is either of two causes this close.
constexpr double kNear = 0.10;
constexpr absl::Duration kStopPeriod = absl::Milliseconds(200);
// A source is busy where its receivers share something. On this host that would be its few cores; so with and
// without the others the source has a link that is slower than they are.
constexpr uint64_t kSharedUplinkBits = 4'000'000'000;

enum class Fault : uint8_t {
  kSlowUplink,
  kSlowDownlink,
  kStoppedSource,
  kStoppedReceiver,
  kBurners,
  kReceiveLimit,
  kSendLimit,
  kBusySource,
};
constexpr Fault kFaults[] = {Fault::kSlowUplink,      Fault::kSlowDownlink, Fault::kStoppedSource,
                             Fault::kStoppedReceiver, Fault::kBurners,      Fault::kReceiveLimit,
                             Fault::kSendLimit,       Fault::kBusySource};

// How explain should name it.
struct Truth {
  const char* name;   // of the fault
  const char* cause;  // explain::Cause::name
  // The bounding hop; "": this node itself, null: any.
  const char* from;
};

Truth TruthOf(Fault fault) {
  switch (fault) {
    case Fault::kSlowUplink:
      return {"uplink", "network", "node-0"};
    case Fault::kSlowDownlink:
      return {"downlink", "network", "node-0"};
    case Fault::kStoppedSource:
      return {"stopped source", "stopped", "node-0"};
    case Fault::kStoppedReceiver:
      return {"stopped receiver", "stopped", ""};
    case Fault::kBurners:
      return {"burners", "no cpu", nullptr};
    case Fault::kReceiveLimit:
      return {"limits.receive", "limiter", "node-0"};
    case Fault::kSendLimit:
      return {"limits.send", "limiter", "node-0"};
    case Fault::kBusySource:
      return {"busy source", "other receivers", "node-0"};
  }
  return {"", "", nullptr};
}

struct Injected {
  Fault fault;
  double strength;  // the share of the time that it should cost
};

// Stops a process for a share of each period, until it is destroyed.
class DutyCycle {
 public:
  DutyCycle(Process* process, double stopped)
      : process_(process), thread_([this, stopped] {
          while (!end_.WaitForNotificationWithTimeout(kStopPeriod * (1 - stopped))) {
            (void)process_->Signal(SIGSTOP);
            absl::SleepFor(kStopPeriod * stopped);
            (void)process_->Signal(SIGCONT);
          }
        }) {}
  ~DutyCycle() {
    end_.Notify();
    thread_.join();
  }

 private:
  Process* const process_;
  absl::Notification end_;
  std::thread thread_;
};

// Threads that compute, so many for each core that they take this share of what a thread would get.
class Burners {
 public:
  explicit Burners(double share) {
    const double cores = std::max(1u, std::thread::hardware_concurrency());
    const int count = std::max(1, static_cast<int>(cores * share / (1 - share) + 0.5));
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_) {
        }
      });
    }
  }
  ~Burners() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

struct Measured {
  absl::Duration took;
  explain::Bound bound;
  std::optional<explain::BoundingHop> hop;
};

class ExplainBench {
 public:
  ExplainBench(const BenchOptions& options, uint64_t seed)
      : options_(options), bytes_(options.BytesOr(768 * kMiB, 24 * kMiB)), random_(seed) {}

  absl::StatusOr<Rows> Run() {
    std::vector<std::vector<Injected>> trials;
    for (const Fault fault : kFaults) trials.push_back({{fault, Draw(0.60, 0.85)}});
    for (int pair = 0; pair < 4; ++pair) {
      std::vector<Fault> faults(std::begin(kFaults), std::end(kFaults));
      std::shuffle(faults.begin(), faults.end(), random_);
      trials.push_back({{faults[0], Draw(0.35, 0.75)}, {faults[1], Draw(0.35, 0.75)}});
    }
    // --runs: so many of them, in an order of chance.
    std::shuffle(trials.begin(), trials.end(), random_);
    trials.resize(std::min<size_t>(trials.size(), options_.RunsOr(static_cast<int>(trials.size()), 1)));
    for (const std::vector<Injected>& trial : trials) TC_RETURN_IF_ERROR(Try(trial));
    Row score;
    score.bench = "explain";
    score.lane = "score";
    score.metric = "cause and hop right";
    score.value = Summarize({right_ / static_cast<double>(trials.size())});
    score.unit = "of 1";
    score.note = absl::StrFormat("%d of %d causes and hops right, %d of %d shares within 10 points",
                                 static_cast<int>(right_), trials.size(), near_, trials.size());
    rows_.push_back(std::move(score));
    return std::move(rows_);
  }

 private:
  double Draw(double min, double max) { return std::uniform_real_distribution<double>(min, max)(random_); }

  // Bytes a second that make the transfer take 1 / (1 - strength) of its undisturbed time.
  uint64_t RateFor(double strength, absl::Duration undisturbed) const {
    return static_cast<uint64_t>(static_cast<double>(bytes_) / absl::ToDoubleSeconds(undisturbed) *
                                 (1 - strength));
  }

  absl::Status Try(const std::vector<Injected>& trial) {
    uplink_is_shared_ = std::ranges::count(trial, Fault::kBusySource, &Injected::fault) > 0;
    TC_ASSIGN_OR_RETURN(const Measured base, Measure({}, absl::ZeroDuration()));
    TC_ASSIGN_OR_RETURN(const Measured with, Measure(trial, base.took));
    // What each costs beside the others: the time without it, against the time with all.
    std::vector<double> shares;
    for (size_t i = 0; i < trial.size(); ++i) {
      absl::Duration without = base.took;
      if (trial.size() > 1) {
        std::vector<Injected> others = trial;
        others.erase(others.begin() + static_cast<ptrdiff_t>(i));
        TC_ASSIGN_OR_RETURN(const Measured rest, Measure(others, base.took));
        without = rest.took;
      }
      shares.push_back(1 - absl::FDivDuration(without, with.took));
    }
    Score(trial, shares, base, with);
    return absl::OkStatus();
  }

  void Score(const std::vector<Injected>& trial, const std::vector<double>& shares, const Measured& base,
             const Measured& with) {
    const double max = *std::ranges::max_element(shares);
    bool right = false;
    double truth = max;
    std::string faults;
    for (size_t i = 0; i < trial.size(); ++i) {
      const Truth expected = TruthOf(trial[i].fault);
      absl::StrAppend(&faults, faults.empty() ? "" : " + ", expected.name,
                      absl::StrFormat(" %.0f %%", shares[i] * 100));
      const bool counts = shares[i] >= max - kNear;
      const std::string from = with.hop.has_value() ? with.hop->from : "?";
      const bool hop = expected.from == nullptr || from == expected.from;
      if (counts && !right && with.bound.cause.name == expected.cause && hop) {
        right = true;
        truth = shares[i];
      }
    }
    const bool near = std::abs(with.bound.share - truth) <= kNear;
    right_ += right ? 1 : 0;
    near_ += near ? 1 : 0;
    Row row;
    row.bench = "explain";
    row.lane = faults;
    row.metric = "share of the time";
    row.bytes = bytes_;
    row.value = Summarize({with.bound.share});
    row.unit = "of 1";
    row.reference = Reference{"1 - time without / time with", Summarize({truth})};
    row.note = absl::StrFormat("%s: %s, %s -> %s; %s; %.2f s, undisturbed %.2f s", right ? "right" : "WRONG",
                               with.bound.part, with.hop.has_value() ? with.hop->from : "?",
                               with.hop.has_value() ? with.hop->to : "?",
                               with.bound.cause.name.empty() ? "no cause" : with.bound.cause.name,
                               absl::ToDoubleSeconds(with.took), absl::ToDoubleSeconds(base.took));
    Say(absl::StrCat("explain: ", faults, ": ", row.note,
                     right && near ? "" : "; because: ", right && near ? "" : with.bound.why));
    rows_.push_back(std::move(row));
  }

  // One transfer with these faults, and what is said of it.
  absl::StatusOr<Measured> Measure(const std::vector<Injected>& faults, absl::Duration undisturbed) {
    BenchOptions options = options_;
    int others = 0;
    for (const Injected& one : faults) {
      const uint64_t rate = undisturbed > absl::ZeroDuration() ? RateFor(one.strength, undisturbed) : 0;
      if (one.fault == Fault::kReceiveLimit) {
        options.sets.push_back(absl::StrCat("daemon.limits.receive=", rate));
      }
      if (one.fault == Fault::kSendLimit) options.sets.push_back(absl::StrCat("daemon.limits.send=", rate));
      if (one.fault == Fault::kBusySource) {
        others = std::max(1, static_cast<int>(one.strength / (1 - one.strength) + 0.5));
      }
    }
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Network> network, Network::Make(2 + others));
    BenchCluster::Options on_network;
    on_network.daemons = 2 + others;
    on_network.pool_bytes = (1 + static_cast<uint64_t>(others)) * (bytes_ + 64 * kMiB);
    on_network.network = network.get();
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<BenchCluster> cluster,
                        BenchCluster::Start(options, on_network));
    TC_RETURN_IF_ERROR(cluster->ImportModel(kExplainedKey, bytes_).status());
    for (int i = 0; i < others; ++i) {
      TC_RETURN_IF_ERROR(
          cluster->ImportModel(OtherKey(i), bytes_, /*seed=*/static_cast<uint64_t>(i) + 2).status());
    }
    if (uplink_is_shared_) TC_RETURN_IF_ERROR(network->Throttle(kGiver, kSharedUplinkBits));
    std::vector<std::unique_ptr<DutyCycle>> stops;
    std::unique_ptr<Burners> burners;
    for (const Injected& one : faults) {
      const uint64_t bits = 8 * RateFor(one.strength, undisturbed);
      if (one.fault == Fault::kSlowUplink) TC_RETURN_IF_ERROR(network->Throttle(kGiver, bits));
      if (one.fault == Fault::kSlowDownlink) TC_RETURN_IF_ERROR(network->Throttle(kTaker, bits));
      if (one.fault == Fault::kBurners) burners = std::make_unique<Burners>(one.strength);
      if (one.fault == Fault::kStoppedSource || one.fault == Fault::kStoppedReceiver) {
        const int node = one.fault == Fault::kStoppedSource ? kGiver : kTaker;
        stops.push_back(std::make_unique<DutyCycle>(&cluster->processes().daemon(node), one.strength));
      }
    }
    std::vector<std::thread> others_get;
    for (int i = 0; i < others; ++i) {
      others_get.emplace_back([this, &cluster, i] {
        // Fails where the cluster ends first, which harms nothing.
        (void)cluster->client(2 + i).Get(options_.context, OtherKey(i), {.lane = kOverTcp, .attach = false});
      });
    }
    const auto replica =
        cluster->client(kTaker).Get(options_.context, kExplainedKey, {.lane = kOverTcp, .attach = false});
    for (std::thread& other : others_get) other.join();
    burners.reset();
    stops.clear();
    TC_RETURN_IF_ERROR(replica.status());
    if (!(*replica)->transfer()) return absl::InternalError("the replica was there before it was asked for");
    TC_ASSIGN_OR_RETURN(
        const v1::ExplainTransferResponse explained,
        cluster->admin(kTaker).ExplainTransfer(options_.context, (*replica)->transfer()->transfer_id));
    const explain::Route route = explain::RouteOf(explained);
    if (route.hops.empty() || !route.hops.front().transfer.has_value()) {
      return absl::InternalError("the receiver has no report of its transfer");
    }
    const TransferReport& report = *route.hops.front().transfer;
    Measured measured;
    measured.took = report.end - report.queued;
    measured.bound = explain::FindBound(report, explain::DetailsOf(route, report));
    measured.hop = explain::FindBoundingHop(route);
    TC_RETURN_IF_ERROR(cluster->Stop());
    return measured;
  }

  static std::string OtherKey(int other) { return absl::StrCat(kExplainedKey, "-other-", other); }

  const BenchOptions options_;
  const uint64_t bytes_;
  std::mt19937_64 random_;
  Rows rows_;
  bool uplink_is_shared_ = false;  // in all measurements of the trial
  double right_ = 0;
  int near_ = 0;
};

}  // namespace

absl::StatusOr<Rows> RunExplain(const BenchOptions& options, uint64_t seed) {
  return ExplainBench(options, seed).Run();
}

}  // namespace tensorcast::bench
