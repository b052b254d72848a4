// Measures whether `explain` names a bottleneck that was made on purpose, and its share of the time. Each
// measurement has a new cluster on hosts with separate links: undisturbed, with each bottleneck, and with
// all.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/wall_time.h"
#include "cli/explain/hops.h"
#include "objects/testing/fake_s3.h"
#include "rpc/convert/transfer_reports.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/bottlenecks.h"
#include "tools/workshop/bench/slow_disk.h"
#include "tools/workshop/bench/yardsticks.h"
#include "tools/workshop/cluster/network.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::bench {
namespace {

constexpr char kExplainedKey[] = "explained";
constexpr char kOverTcp[] = "tcp";
constexpr char kObjectName[] = "model.safetensors";
constexpr int kSwarmNodes = 4;
constexpr size_t kTrials = 20;
// An answer this close to the measured share is right, and so is either of two causes this close.
constexpr double kNear = 0.10;
// Several bottlenecks that hide each other cost less than this one by one: the transfer has no largest cause.
constexpr double kTells = 0.30;

struct Injected {
  const Bottleneck* kind = nullptr;
  double strength = 0;  // the share of the time that it should cost
};

struct Trial {
  Scene scene = Scene::kPull;
  std::vector<Injected> injected;
};

struct Measured {
  absl::Duration took;
  explain::Bound bound;
  std::optional<explain::BoundingHop> hop;
  std::string accounts;  // of both ends
};

std::string TextOf(std::string_view node, const WallTime& time) {
  return absl::StrFormat(
      "%s %.2f s (working %.0f, no cpu %.0f, stopped %.0f, limiter %.0f, buffers %.0f, idle %.0f %%)", node,
      absl::ToDoubleSeconds(time.whole), time.Share(TimeUse::kWorking) * 100,
      time.Share(TimeUse::kNoCpu) * 100, time.Share(TimeUse::kStopped) * 100,
      time.Share(TimeUse::kLimiter) * 100, time.Share(TimeUse::kBuffers) * 100,
      time.Share(TimeUse::kIdle) * 100);
}

// The bytes of a file, for an object store that keeps them in memory.
std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ExplainBench {
 public:
  ExplainBench(const BenchOptions& options, const ExplainOptions& explain)
      : options_(options),
        explain_(explain),
        bytes_(options.BytesOr(512 * kMiB, 24 * kMiB)),
        random_(explain.seed) {}

  absl::StatusOr<Rows> Run() {
    std::vector<Trial> trials = DrawTrials();
    for (const Trial& trial : trials) {
      const absl::Status tried = Try(trial);
      // Not every machine has what a slow disk is made of.
      if (trial.scene == Scene::kDisk && absl::IsFailedPrecondition(tried)) {
        Say(absl::StrCat("explain: left out: ", NamesOf(trial), ": ", tried.message()));
      } else if (!tried.ok()) {
        return Annotate(tried, absl::StrCat("explain ", NamesOf(trial)));
      }
    }
    if (rows_.empty()) return absl::FailedPreconditionError("explain: no bottleneck can be made here");
    const auto tried = static_cast<int>(rows_.size());
    Row score;
    score.bench = "explain";
    score.lane = "score";
    score.metric = "cause and hop right";
    score.value = Summarize({right_ / tried});
    score.unit = "of 1";
    score.note = absl::StrFormat("%d of %d causes and hops right, %d of %d shares within 10 points",
                                 static_cast<int>(right_), tried, near_, tried);
    rows_.push_back(std::move(score));
    return std::move(rows_);
  }

 private:
  double Draw(double min, double max) { return std::uniform_real_distribution<double>(min, max)(random_); }

  // Each kind alone in each scene, then pairs of kinds that a scene has, in an order of chance.
  std::vector<Trial> DrawTrials() {
    if (!explain_.bottlenecks.empty()) return TrialsTogether();
    std::vector<const Bottleneck*> kinds;
    std::vector<Trial> trials;
    for (const Bottleneck& kind : AllBottlenecks()) {
      if (!kind.is_drawn) continue;
      kinds.push_back(&kind);
      for (const Scene scene : kind.scenes) trials.push_back({scene, {{&kind, Draw(0.60, 0.85)}}});
    }
    while (trials.size() < kTrials) {
      std::ranges::shuffle(kinds, random_);
      for (const Scene scene : kinds[0]->scenes) {
        if (trials.size() == kTrials || std::ranges::count(kinds[1]->scenes, scene) == 0) continue;
        trials.push_back({scene, {{kinds[0], Draw(0.35, 0.75)}, {kinds[1], Draw(0.35, 0.75)}}});
      }
    }
    std::ranges::shuffle(trials, random_);
    trials.resize(std::min<size_t>(trials.size(), options_.RunsOr(kTrials, 1)));
    for (Trial& trial : trials) AddBeside(trial);
    return trials;
  }

  // Those that were asked for together, in each scene that has them all.
  std::vector<Trial> TrialsTogether() {
    std::vector<Trial> trials;
    for (const Scene scene : FindBottleneck(explain_.bottlenecks.front())->scenes) {
      Trial trial{.scene = scene};
      for (const std::string& name : explain_.bottlenecks) {
        const Bottleneck* const kind = FindBottleneck(name);
        if (std::ranges::count(kind->scenes, scene) > 0) trial.injected.push_back({kind, Draw(0.60, 0.75)});
      }
      if (trial.injected.size() < explain_.bottlenecks.size()) continue;
      AddBeside(trial);
      trials.push_back(std::move(trial));
    }
    return trials;
  }

  static void AddBeside(Trial& trial) {
    const std::vector<Injected> drawn = trial.injected;
    for (const Injected& one : drawn) {
      const bool is_replaced = std::ranges::any_of(drawn, [&one](const Injected& other) {
        return !other.kind->replaces.empty() && other.kind->replaces == one.kind->beside;
      });
      if (!one.kind->beside.empty() && !is_replaced) {
        trial.injected.insert(trial.injected.begin(), {FindBottleneck(one.kind->beside), 0});
      }
    }
  }

  static std::string NamesOf(const Trial& trial) {
    return absl::StrJoin(trial.injected, " + ",
                         [](std::string* out, const Injected& one) { absl::StrAppend(out, one.kind->name); });
  }

  absl::Status Try(const Trial& trial) {
    TC_ASSIGN_OR_RETURN(const Measured base, Measure({.scene = trial.scene}, absl::ZeroDuration()));
    TC_ASSIGN_OR_RETURN(const Measured with, Measure(trial, base.took));
    // What each costs beside the others: the time without it, against the time with all.
    std::vector<double> shares;
    for (size_t i = 0; i < trial.injected.size(); ++i) {
      absl::Duration without = base.took;
      if (trial.injected.size() > 1) {
        Trial others = trial;
        others.injected.erase(others.injected.begin() + static_cast<ptrdiff_t>(i));
        TC_ASSIGN_OR_RETURN(const Measured rest, Measure(others, base.took));
        without = rest.took;
      }
      shares.push_back(1 - absl::FDivDuration(without, with.took));
    }
    if (shares.size() > 1 && *std::ranges::max_element(shares) < kTells) {
      Say(absl::StrCat("explain: left out: ", NamesOf(trial), ": without any one of them it takes as long"));
    } else {
      Score(trial, shares, base, with);
    }
    return absl::OkStatus();
  }

  void Score(const Trial& trial, const std::vector<double>& shares, const Measured& base,
             const Measured& with) {
    const double max = *std::ranges::max_element(shares);
    bool right = false;
    double truth = max;
    std::string faults = trial.scene == Scene::kSwarm ? "swarm: " : "";
    // A file or an object comes from no other node, so no hop is named.
    const std::string from = with.hop.has_value() ? with.hop->from : "";
    for (size_t i = 0; i < trial.injected.size(); ++i) {
      const Bottleneck& kind = *trial.injected[i].kind;
      absl::StrAppend(&faults, i == 0 ? "" : " + ", kind.name, absl::StrFormat(" %.0f %%", shares[i] * 100));
      const bool counts = shares[i] >= max - kNear;
      const bool hop = !kind.from.has_value() || from == *kind.from;
      // Of a swarm the cause at the hop counts, which may be further up.
      const std::string& cause =
          trial.scene == Scene::kSwarm && with.hop.has_value() ? with.hop->cause : with.bound.cause.name;
      // Both say that CPUs are the limit: which one depends on what else runs on them.
      const bool of_cpus = kind.cause == "cores" && cause == "no cpu";
      if (counts && !right && (cause == kind.cause || of_cpus) && hop) {
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
                               with.bound.part, from, with.hop.has_value() ? with.hop->to : "node-1",
                               with.bound.cause.name.empty() ? "no cause" : with.bound.cause.name,
                               absl::ToDoubleSeconds(with.took), absl::ToDoubleSeconds(base.took));
    Say(absl::StrFormat(
        "explain: %s: %s; share %.2f, measured %.2f; accounts: %s; undisturbed: %s; because: %s", faults,
        row.note, with.bound.share, truth, with.accounts, base.accounts, with.bound.why));
    rows_.push_back(std::move(row));
  }

  // One transfer with these bottlenecks, and what is said of it.
  absl::StatusOr<Measured> Measure(const Trial& trial, absl::Duration undisturbed) {
    Plan plan{.scene = trial.scene, .bytes = bytes_, .undisturbed = undisturbed};
    for (const Injected& one : trial.injected) {
      if (one.kind->prepare != nullptr) one.kind->prepare(one.strength, plan);
    }
    const int nodes = plan.scene == Scene::kSwarm ? kSwarmNodes : 2 + plan.others;
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Network> network, Network::Make(nodes));
    // Declared before the cluster: its processes use them until they end.
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryDirectory> folder,
                        TemporaryDirectory::Create("tensorcast-bench-explain"));
    std::unique_ptr<SlowDisk> disk;
    std::unique_ptr<objects::testing::FakeS3> objects;
    if (plan.scene == Scene::kDisk) {
      TC_ASSIGN_OR_RETURN(disk, SlowDisk::Make(folder->path(), bytes_ + bytes_ / 8 + 64 * kMiB));
    }
    if (plan.scene == Scene::kObjects) {
      TC_RETURN_IF_ERROR(
          network->Inside(kTaker, [&] { objects = std::make_unique<objects::testing::FakeS3>(); }));
    }
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<BenchCluster> cluster,
                        StartCluster(plan, nodes, *network, objects.get()));
    const absl::StatusOr<TransferReport> report =
        Transfer(trial, plan, *network, *cluster, disk.get(), objects.get(), folder->path());
    if (!report.ok()) return cluster->WithEndedDaemons(report.status());
    absl::StatusOr<Measured> measured = Explained(*cluster, *report);
    if (!measured.ok()) return cluster->WithEndedDaemons(measured.status());
    TC_RETURN_IF_ERROR(cluster->Stop());
    return measured;
  }

  absl::StatusOr<std::unique_ptr<BenchCluster>> StartCluster(const Plan& plan, int nodes,
                                                             const Network& network,
                                                             const objects::testing::FakeS3* objects) {
    BenchOptions options = options_;
    // One busy thread at each end: on a machine with few cores the threads of two nodes would have to wait
    // for each other's, and that bottleneck was not asked for.
    options.sets.emplace_back("daemon.tcp_connections=1");
    BenchCluster::Options on_network;
    on_network.daemons = nodes;
    on_network.network = &network;
    on_network.tls = plan.tls;
    on_network.pool_bytes = bytes_ + 64 * kMiB;
    // The giver has what the others get, too.
    on_network.pool_bytes_of_daemon = {static_cast<uint64_t>(1 + Artifacts(plan)) * on_network.pool_bytes};
    on_network.settings_of_daemon = {plan.giver_settings, plan.taker_settings};
    if (objects != nullptr) {
      on_network.settings_of_daemon[kTaker].emplace_back("daemon.origins=[s3://bucket/]");
      on_network.environment = {{"AWS_REGION", "us-east-1"},           {"AWS_ENDPOINT_URL", objects->url()},
                                {"AWS_ACCESS_KEY_ID", "key"},          {"AWS_SECRET_ACCESS_KEY", "secret"},
                                {"AWS_EC2_METADATA_DISABLED", "true"}, {"no_proxy", "127.0.0.1"}};
    }
    return BenchCluster::Start(options, on_network);
  }

  // The transfer that is explained, disturbed from its beginning to its end.
  absl::StatusOr<TransferReport> Transfer(const Trial& trial, const Plan& plan, Network& network,
                                          BenchCluster& cluster, SlowDisk* disk,
                                          objects::testing::FakeS3* objects, const std::string& folder) {
    std::string file;
    if (disk != nullptr || objects != nullptr) {
      file = absl::StrCat(disk != nullptr ? disk->path() : folder, "/", kObjectName);
      TC_RETURN_IF_ERROR(WriteLlamaModel(file, {.bytes = bytes_, .seed = 1, .context = options_.context}));
      if (disk != nullptr) TC_RETURN_IF_ERROR(DropFromPageCache(file).status());
      if (objects != nullptr) objects->Put(kObjectName, BytesOf(file));
    } else {
      TC_RETURN_IF_ERROR(cluster.ImportModel(kExplainedKey, bytes_).status());
    }
    for (int i = 0; i < Artifacts(plan); ++i) {
      TC_RETURN_IF_ERROR(
          cluster.ImportModel(OtherKey(i), bytes_, /*seed=*/static_cast<uint64_t>(i) + 2).status());
    }
    std::unique_ptr<client::Replica> in_pool;
    if (plan.pool_in_use > absl::ZeroDuration()) {
      TC_ASSIGN_OR_RETURN(
          in_pool, cluster.client(kTaker).Get(options_.context, OtherKey(plan.others), {.lane = kOverTcp}));
    }
    const Running running{
        .plan = &plan, .network = &network, .processes = &cluster.processes(), .disk = disk};
    std::vector<std::unique_ptr<Disturbance>> disturbances;
    for (const Injected& one : trial.injected) {
      if (one.kind->begin == nullptr) continue;
      TC_ASSIGN_OR_RETURN(disturbances.emplace_back(), one.kind->begin(one.strength, running));
    }
    std::vector<std::thread> others;
    if (in_pool != nullptr) {
      others.emplace_back([&in_pool, &plan] {
        absl::SleepFor(plan.pool_in_use);
        in_pool.reset();
      });
    }
    for (int node = 2; node < cluster.processes().daemons(); ++node) {
      const std::string key = plan.scene == Scene::kSwarm ? kExplainedKey : OtherKey(node - 2);
      others.emplace_back([this, &cluster, node, key] {
        // Fails where the cluster ends first, which harms nothing.
        (void)cluster.client(node).Get(options_.context, key, {.lane = kOverTcp, .attach = false});
      });
    }
    absl::StatusOr<TransferReport> report = Take(plan, cluster, file);
    for (std::thread& other : others) other.join();
    return report;
  }

  absl::StatusOr<TransferReport> Take(const Plan& plan, BenchCluster& cluster, const std::string& file) {
    std::optional<TransferReport> report;
    if (file.empty()) {
      TC_ASSIGN_OR_RETURN(
          const auto replica,
          cluster.client(kTaker).Get(options_.context, kExplainedKey,
                                     {.lane = kOverTcp, .wait_for_space = true, .attach = false}));
      report = replica->transfer();
    } else {
      const std::string path =
          plan.scene == Scene::kObjects ? absl::StrCat("s3://bucket/", kObjectName) : file;
      TC_ASSIGN_OR_RETURN(const client::PutResult put,
                          cluster.client(kTaker).Import(options_.context, path, {.key = kExplainedKey}));
      report = put.transfer;
    }
    if (!report.has_value()) return absl::InternalError("the replica was there before it was asked for");
    return *report;
  }

  absl::StatusOr<Measured> Explained(BenchCluster& cluster, const TransferReport& transfer) {
    TC_ASSIGN_OR_RETURN(const v1::ExplainTransferResponse explained,
                        cluster.admin(kTaker).ExplainTransfer(options_.context, transfer.transfer_id));
    const explain::Route route = explain::RouteOf(explained);
    if (route.hops.empty() || !route.hops.front().transfer.has_value()) {
      return absl::InternalError("the receiver has no report of its transfer");
    }
    const TransferReport& report = *route.hops.front().transfer;
    Measured measured;
    measured.took = report.end - report.queued;
    measured.bound = explain::FindBound(report, explain::DetailsOf(route, report));
    measured.hop = explain::FindBoundingHop(route);
    measured.accounts = TextOf("receiver", report.wall_time);
    for (const explain::Hop& hop : route.hops) {
      for (const v1::ServeReport& served : hop.servings) {
        absl::StrAppend(&measured.accounts, ", ", TextOf(hop.node, rpc::FromProto(served.wall_time())),
                        " and sent ", served.other_bytes() / kMiB, " MiB to others");
      }
    }
    return measured;
  }

  // That kGiver has beside the explained one: one for each other node, and one for kTaker's pool.
  static int Artifacts(const Plan& plan) {
    return plan.others + (plan.pool_in_use > absl::ZeroDuration() ? 1 : 0);
  }

  static std::string OtherKey(int other) { return absl::StrCat(kExplainedKey, "-other-", other); }

  const BenchOptions options_;
  const ExplainOptions explain_;
  const uint64_t bytes_;
  std::mt19937_64 random_;
  Rows rows_;
  double right_ = 0;
  int near_ = 0;
};

}  // namespace

std::vector<std::string> BottleneckNames() {
  std::vector<std::string> names;
  for (const Bottleneck& kind : AllBottlenecks()) names.emplace_back(kind.name);
  return names;
}

absl::StatusOr<Rows> RunExplain(const BenchOptions& options, const ExplainOptions& explain) {
  return ExplainBench(options, explain).Run();
}

}  // namespace tensorcast::bench
