// How a new version of weights reaches nodes with the previous one: the cost of a put with a base, and how
// much sooner a difference arrives than the whole image. Weights are bf16 from N(0, 0.02); each step moves
// some of them by one representable value. Each transfer's report tells that chunks came by difference.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {
namespace {

constexpr char kKey[] = "policy";
constexpr uint64_t kTensorBytes = 7 * kMiB + 512;
constexpr size_t kFilledElements = size_t{8} << 20;  // at random; the rest is the same, rotated
constexpr uint64_t kLinkBitsPerSecond = 10'000'000'000;
constexpr uint64_t kFleetBitsPerSecond = 400'000'000;
constexpr int kFleet = 8;
constexpr int kVersionsBehind = 8;
constexpr absl::Duration kLook = absl::Milliseconds(2);

// A client's arrays, which change as training changes them.
class Trainer {
 public:
  Trainer(uint64_t bytes, double changed_part)
      : weights_(bytes / sizeof(uint16_t)), unchanged_(changed_part), random_(1) {
    std::normal_distribution<float> weight(0, 0.02f);
    const size_t filled = std::min(kFilledElements, weights_.size());
    for (size_t i = 0; i < filled; ++i) {
      weights_[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(weight(random_)) >> 16);
    }
    // Rotated, so that no two chunks are equal.
    for (size_t at = filled; at < weights_.size(); at += filled) {
      const size_t shift = at / filled * 4099 % filled;
      for (size_t i = 0; i < std::min(filled, weights_.size() - at); ++i) {
        weights_[at + i] = weights_[(i + shift) % filled];
      }
    }
    const auto all = std::as_bytes(std::span(weights_));
    for (uint64_t at = 0; at < all.size(); at += kTensorBytes) {
      const uint64_t here = std::min<uint64_t>(kTensorBytes, all.size() - at);
      tensors_.push_back({.name = absl::StrCat("tensor.", tensors_.size()),
                          .dtype = DType::kBF16,
                          .shape = {here / sizeof(uint16_t)},
                          .bytes = all.subspan(at, here)});
    }
  }

  void Step() {
    for (size_t i = unchanged_(random_); i < weights_.size(); i += unchanged_(random_) + 1) {
      weights_[i] = static_cast<uint16_t>(weights_[i] + (random_() % 2 == 0 ? 1 : -1));
    }
  }
  // An element of each tensor: other content, and no more work for a difference.
  void Touch() {
    for (size_t i = 0; i < weights_.size(); i += kTensorBytes / sizeof(uint16_t)) ++weights_[i];
  }
  const std::vector<client::PutTensor>& tensors() const { return tensors_; }

 private:
  std::vector<uint16_t> weights_;
  std::geometric_distribution<size_t> unchanged_;  // elements between two that change
  std::mt19937_64 random_;
  std::vector<client::PutTensor> tensors_;
};

// The anonymous memory of a process, which pools and files are not.
absl::StatusOr<uint64_t> AnonymousBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "RssAnon:")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() == 3 && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return absl::NotFoundError(absl::StrCat("/proc/", pid, "/status does not tell the anonymous memory"));
}

// OK: all bytes came by differences from `base_id`.
absl::Status CheckPath(const client::Replica& replica, const std::string& base_id) {
  if (!replica.transfer().has_value()) return absl::InternalError("the version was there already");
  for (const SourceReport& source : replica.transfer()->sources) {
    if (source.bytes > 0 && (source.source.lane != kDifferenceLane || source.source.name != base_id)) {
      return absl::InternalError(absl::StrCat(source.bytes, " bytes came over the lane ", source.source.lane,
                                              " from ", source.source.name, ", not from ", base_id));
    }
  }
  return absl::OkStatus();
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

class VersionsBench {
 public:
  VersionsBench(const BenchOptions& options, const VersionsOptions& versions)
      : options_(options), versions_(versions), runs_(options.RunsOr(5)) {}

  absl::StatusOr<Rows> Run() {
    const auto wanted = [this](std::string_view part) {
      return versions_.only.empty() || versions_.only == part;
    };
    // Those take root, and memory for a fleet.
    const bool with_networks = !options_.smoke || !versions_.only.empty();
    if (wanted("put")) TC_RETURN_IF_ERROR(MeasurePut());
    if (wanted("fold")) TC_RETURN_IF_ERROR(MeasureFold());
    if (with_networks && wanted("link")) TC_RETURN_IF_ERROR(MeasureLink());
    if (with_networks && wanted("update")) TC_RETURN_IF_ERROR(MeasureUpdate());
    return std::move(rows_);
  }

 private:
  absl::Status Start(uint64_t bytes, int daemons, int images, const Network* network = nullptr) {
    trainer_ = std::make_unique<Trainer>(bytes, versions_.changed_percent / 100);
    TC_ASSIGN_OR_RETURN(
        cluster_,
        BenchCluster::Start(
            options_, {.daemons = daemons,
                       .pool_bytes = images * (bytes + 8 * kMiB) + bytes / 4,
                       .settings = {absl::StrCat("global_store.difference_versions=", kVersionsBehind + 1)},
                       .network = network}));
    return absl::OkStatus();
  }

  absl::StatusOr<client::PutResult> Put(const std::string& base) {
    TC_ASSIGN_OR_RETURN(
        client::PutResult put,
        cluster_->client(0).Put(options_.context, trainer_->tensors(), {},
                                {.key = kKey, .base = base, .require_difference = base != "none"}));
    return put;
  }
  absl::StatusOr<client::PutResult> PutNext() {
    trainer_->Step();
    return Put("auto");
  }
  absl::StatusOr<std::unique_ptr<client::Replica>> Get(int node, const std::string& what,
                                                       const std::string& lane = "") {
    return cluster_->client(node).Get(options_.context, what, {.lane = lane});
  }
  // Evicts all replicas of the node but those of these artifacts.
  absl::Status KeepOnly(int node, const std::set<std::string>& artifact_ids) {
    TC_ASSIGN_OR_RETURN(const auto replicas, cluster_->admin(node).ListReplicas(options_.context, ""));
    for (const auto& replica : replicas) {
      if (artifact_ids.contains(replica.artifact_id())) continue;
      TC_RETURN_IF_ERROR(
          cluster_->admin(node).EvictReplica(options_.context, replica.replica_id(), /*force=*/true));
    }
    return absl::OkStatus();
  }

  absl::Status MeasurePut() {
    const uint64_t bytes = options_.BytesOr(kGiB, 24 * kMiB);
    TC_RETURN_IF_ERROR(Start(bytes, /*daemons=*/1, /*images=*/3));
    TC_ASSIGN_OR_RETURN(client::PutResult base, Put("none"));
    Pairs pairs;
    uint64_t difference_bytes = 0;
    const auto whole = [&]() -> absl::StatusOr<double> {
      trainer_->Touch();
      const SteadyTime start = SteadyNow();
      TC_ASSIGN_OR_RETURN(
          const client::PutResult put,
          cluster_->client(0).Put(options_.context, trainer_->tensors(), {}, {.key = "other"}));
      const double rate = GbPerSecond(bytes, SteadyNow() - start);
      TC_RETURN_IF_ERROR(KeepOnly(0, {base.artifact_id}));
      return rate;
    };
    const auto with_base = [&]() -> absl::StatusOr<double> {
      trainer_->Step();
      const SteadyTime start = SteadyNow();
      TC_ASSIGN_OR_RETURN(client::PutResult put, Put("auto"));
      const double rate = GbPerSecond(bytes, SteadyNow() - start);
      if (!put.difference.has_value() || put.difference->base_id != base.artifact_id) {
        return absl::InternalError("the put made no difference from the version before");
      }
      difference_bytes = put.difference->image_bytes;
      base = std::move(put);
      TC_RETURN_IF_ERROR(KeepOnly(0, {base.artifact_id}));
      return rate;
    };
    TC_RETURN_IF_ERROR(whole().status());
    for (int run = 0; run < runs_; ++run) {
      Say(absl::StrCat("versions: put, run ", run + 1, " of ", runs_));
      double rates[2] = {};
      for (int i = 0; i < 2; ++i) {
        const bool based = (i + run) % 2 == 0;
        TC_ASSIGN_OR_RETURN(rates[based ? 1 : 0], based ? with_base() : whole());
      }
      pairs.Add(rates[1], rates[0]);
    }
    TC_ASSIGN_OR_RETURN(const uint64_t grown, HeapOf([&] { return with_base().status(); }));
    Add({.lane = "put", .metric = "with a base", .bytes = bytes, .unit = "GB/s"}, pairs, "puts without");
    Row size{.bench = "versions", .lane = "put", .metric = "difference / image", .bytes = bytes, .unit = "%"};
    size.value = Summarize({100.0 * static_cast<double>(difference_bytes) / static_cast<double>(bytes)});
    rows_.push_back(std::move(size));
    Row heap{
        .bench = "versions", .lane = "put", .metric = "daemon's heap, growth", .bytes = bytes, .unit = "MiB"};
    heap.value = Summarize({static_cast<double>(grown) / static_cast<double>(kMiB)});
    rows_.push_back(std::move(heap));
    return cluster_->Stop();
  }

  // By how much the daemon's anonymous memory grows at most meanwhile.
  template <typename Work>
  absl::StatusOr<uint64_t> HeapOf(Work work) {
    const pid_t pid = cluster_->processes().daemon(0).pid();
    TC_ASSIGN_OR_RETURN(const uint64_t before, AnonymousBytes(pid));
    std::atomic<bool> done = false;
    uint64_t peak = before;
    std::thread looks([&] {
      while (!done) {
        peak = std::max(peak, AnonymousBytes(pid).value_or(0));
        absl::SleepFor(kLook);
      }
    });
    const absl::Status worked = work();
    done = true;
    looks.join();
    TC_RETURN_IF_ERROR(worked);
    return peak - before;
  }

  // Between two daemons of this host, so that differences come by the lane local.
  absl::Status MeasureFold() {
    const uint64_t bytes = options_.BytesOr(256 * kMiB, 24 * kMiB);
    TC_RETURN_IF_ERROR(Start(bytes, /*daemons=*/2, /*images=*/4));
    std::vector<std::string> ids;
    TC_ASSIGN_OR_RETURN(const client::PutResult first, Put("none"));
    ids.push_back(first.artifact_id);
    TC_RETURN_IF_ERROR(Get(1, ids.front()).status());
    std::string replica_id = first.replica_id;
    for (int i = 0; i < kVersionsBehind; ++i) {
      TC_ASSIGN_OR_RETURN(const client::PutResult put, PutNext());
      ids.push_back(put.artifact_id);
      // Else the differences would be evicted, as what was used longest ago.
      TC_RETURN_IF_ERROR(cluster_->admin(0).EvictReplica(options_.context, replica_id, /*force=*/true));
      replica_id = put.replica_id;
    }
    const std::string& oldest = ids.front();
    const std::string& previous = ids[ids.size() - 2];
    const auto timed = [&](const std::string& base) -> absl::StatusOr<double> {
      const SteadyTime start = SteadyNow();
      TC_ASSIGN_OR_RETURN(const auto replica, Get(1, ids.back()));
      const absl::Duration took = SteadyNow() - start;
      TC_RETURN_IF_ERROR(CheckPath(*replica, base));
      return Milliseconds(took);
    };
    Pairs pairs;
    for (int run = 0; run < runs_; ++run) {
      Say(absl::StrCat("versions: fold, run ", run + 1, " of ", runs_));
      TC_RETURN_IF_ERROR(KeepOnly(1, {oldest}));
      TC_ASSIGN_OR_RETURN(const double folded, timed(oldest));
      TC_RETURN_IF_ERROR(KeepOnly(1, {oldest}));
      TC_RETURN_IF_ERROR(Get(1, previous).status());
      TC_RETURN_IF_ERROR(KeepOnly(1, {oldest, previous}));
      TC_ASSIGN_OR_RETURN(const double one, timed(previous));
      pairs.Add(folded, one);
    }
    Add({.lane = "local",
         .metric = absl::StrCat(kVersionsBehind, " versions behind, folded"),
         .bytes = bytes,
         .unit = "ms"},
        pairs, "one version behind");
    return cluster_->Stop();
  }

  absl::Status MeasureLink() {
    const uint64_t bytes = options_.BytesOr(kGiB, 24 * kMiB);
    TC_ASSIGN_OR_RETURN(const auto network, Network::Make(2));
    TC_RETURN_IF_ERROR(Start(bytes, /*daemons=*/2, /*images=*/2, network.get()));
    for (int node = 0; node < 2; ++node) TC_RETURN_IF_ERROR(network->Throttle(node, kLinkBitsPerSecond));
    TC_ASSIGN_OR_RETURN(client::PutResult base, Put("none"));
    TC_RETURN_IF_ERROR(Get(1, kKey).status());
    Pairs pairs;
    std::vector<double> sent_percent;
    for (int run = 0; run < runs_; ++run) {
      Say(absl::StrCat("versions: link, run ", run + 1, " of ", runs_));
      TC_ASSIGN_OR_RETURN(client::PutResult next, PutNext());
      double milliseconds[2] = {};
      for (int i = 0; i < 2; ++i) {
        const bool by_difference = (i + run) % 2 == 0;
        TC_ASSIGN_OR_RETURN(const uint64_t before, network->SentBytes(0));
        const SteadyTime start = SteadyNow();
        TC_ASSIGN_OR_RETURN(auto replica, Get(1, kKey, by_difference ? "" : "tcp"));
        milliseconds[by_difference ? 1 : 0] = Milliseconds(SteadyNow() - start);
        TC_ASSIGN_OR_RETURN(const uint64_t after, network->SentBytes(0));
        if (by_difference) {
          TC_RETURN_IF_ERROR(CheckPath(*replica, base.artifact_id));
          sent_percent.push_back(100.0 * static_cast<double>(after - before) / static_cast<double>(bytes));
        } else if (after - before < bytes) {
          return absl::InternalError("the reference did not come whole over the link");
        }
        replica.reset();
        if (i == 0) TC_RETURN_IF_ERROR(KeepOnly(1, {base.artifact_id}));
      }
      pairs.Add(milliseconds[1], milliseconds[0]);
      base = std::move(next);
      for (int node = 0; node < 2; ++node) TC_RETURN_IF_ERROR(KeepOnly(node, {base.artifact_id}));
    }
    Add({.lane = "10 Gbit/s", .metric = "get by difference", .bytes = bytes, .unit = "ms"}, pairs,
        "the whole, by tcp");
    Row sent{
        .bench = "versions", .lane = "10 Gbit/s", .metric = "left the link", .bytes = bytes, .unit = "%"};
    sent.value = Summarize(sent_percent);
    rows_.push_back(std::move(sent));
    return cluster_->Stop();
  }

  // Of one receiver and version.
  struct Update {
    absl::Status status;
    absl::Time told;         // that the key has changed
    absl::Time ended;        // mapped
    absl::Duration rebuild;  // the target's ingest
  };

  // Waits for the key's next revision after `revision`, and gets it.
  // Until the update has come, or `context` is cancelled. A failed watch cancels it, too.
  Update Follow(const RequestContext& context, int node, uint64_t revision, const std::string& base_id) {
    Update update;
    const absl::Status watched =
        cluster_->client(node).WatchKeys(context, kKey, [&](const client::KeyInfo& key) {
          watching_ += key.revision == revision ? 1 : 0;
          if (key.revision <= revision) return true;
          update.told = absl::Now();
          const auto replica = Get(node, kKey);
          update.ended = absl::Now();
          update.status = replica.ok() ? CheckPath(**replica, base_id) : replica.status();
          if (update.status.ok()) {
            update.rebuild = (*replica)->transfer()->end - (*replica)->transfer()->queued;
          }
          return false;
        });
    update.status.Update(watched);
    if (!watched.ok()) context.cancellation.Cancel();
    return update;
  }

  absl::Status MeasureUpdate() {
    const uint64_t bytes = options_.BytesOr(264'000'000, 8 * kMiB);
    const double seconds_of_a_copy =
        static_cast<double>(bytes) * 8 / static_cast<double>(kFleetBitsPerSecond);
    TC_ASSIGN_OR_RETURN(const auto network, Network::Make(kFleet));
    TC_RETURN_IF_ERROR(Start(bytes, kFleet, /*images=*/2, network.get()));
    TC_ASSIGN_OR_RETURN(client::PutResult base, Put("none"));
    for (int node = 1; node < kFleet; ++node) TC_RETURN_IF_ERROR(Get(node, kKey).status());
    for (int node = 0; node < kFleet; ++node) {
      TC_RETURN_IF_ERROR(network->Throttle(node, kFleetBitsPerSecond));
    }
    std::vector<double> last, median, told, rebuild, images;
    for (int run = 0; run < runs_; ++run) {
      Say(absl::StrCat("versions: update, run ", run + 1, " of ", runs_));
      trainer_->Step();
      const auto sent = [&]() -> absl::StatusOr<uint64_t> {
        uint64_t all = 0;
        for (int node = 0; node < kFleet; ++node) {
          TC_ASSIGN_OR_RETURN(const uint64_t one, network->SentBytes(node));
          all += one;
        }
        return all;
      };
      TC_ASSIGN_OR_RETURN(const uint64_t before, sent());
      watching_ = 0;
      std::vector<Update> updates(kFleet - 1);
      RequestContext following = options_.context;
      following.cancellation = Cancellation();
      const auto interrupted =
          options_.context.cancellation.OnCancel([&following] { following.cancellation.Cancel(); });
      std::vector<std::thread> receivers;
      for (int i = 0; i + 1 < kFleet; ++i) {
        receivers.emplace_back(
            [&, i] { updates[i] = Follow(following, i + 1, base.key_revision, base.artifact_id); });
      }
      // Every receiver has seen the present revision, so none of them misses the put.
      while (watching_ + 1 < kFleet && following.Check("bench").ok()) absl::SleepFor(kLook);
      // A failed put is returned only after the threads are joined: they use the objects of this function.
      const absl::StatusOr<client::PutResult> put = Put("auto");
      if (!put.ok()) following.cancellation.Cancel();
      for (std::thread& receiver : receivers) receiver.join();
      TC_RETURN_IF_ERROR(put.status());
      TC_ASSIGN_OR_RETURN(const client::KeyInfo key,
                          cluster_->client(0).ResolveKey(options_.context, kKey, true));
      std::vector<double> seconds, milliseconds_told, milliseconds_rebuild;
      for (const Update& update : updates) {
        TC_RETURN_IF_ERROR(update.status);
        seconds.push_back(absl::ToDoubleSeconds(update.ended - key.updated));
        milliseconds_told.push_back(Milliseconds(update.told - key.updated));
        milliseconds_rebuild.push_back(Milliseconds(update.rebuild));
      }
      TC_ASSIGN_OR_RETURN(const uint64_t after, sent());
      images.push_back(static_cast<double>(after - before) / static_cast<double>(bytes));
      last.push_back(std::ranges::max(seconds) / seconds_of_a_copy);
      median.push_back(Summarize(seconds).median / seconds_of_a_copy);
      told.push_back(std::ranges::max(milliseconds_told));
      rebuild.push_back(std::ranges::max(milliseconds_rebuild));
      base = *put;
      for (int node = 0; node < kFleet; ++node) TC_RETURN_IF_ERROR(KeepOnly(node, {base.artifact_id}));
    }
    const auto add = [&](const char* metric, const char* unit, const std::vector<double>& values) {
      Row row{.bench = "versions", .lane = "7 x 400 Mbit/s", .metric = metric, .bytes = bytes, .unit = unit};
      row.value = Summarize(values);
      rows_.push_back(std::move(row));
    };
    add("last receiver", "S/B", last);
    add("median receiver", "S/B", median);
    add("last is told of the key", "ms", told);
    add("longest ingest of the target", "ms", rebuild);
    add("left the links", "images", images);
    return cluster_->Stop();
  }

  void Add(Row row, const Pairs& pairs, const std::string& reference) {
    row.bench = "versions";
    pairs.Fill(reference, &row);
    rows_.push_back(std::move(row));
  }

  const BenchOptions& options_;
  const VersionsOptions& versions_;
  const int runs_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<BenchCluster> cluster_;
  std::atomic<int> watching_ = 0;  // receivers that have seen the version before
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunVersions(const BenchOptions& options, const VersionsOptions& versions) {
  return VersionsBench(options, versions).Run();
}

}  // namespace tensorcast::bench
