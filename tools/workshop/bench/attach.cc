// A client gets a mapped view of a ready replica: the cost for every engine after the first.
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {
namespace {

constexpr char kLargeKey[] = "large";
constexpr char kSmallKey[] = "small";
constexpr int kWarmupRuns = 20;

// The last byte of the image is read too: a mapping counts when it can be used.
absl::StatusOr<absl::Duration> Attach(const BenchOptions& options, BenchCluster& cluster,
                                      const std::string& artifact, uint64_t* bytes) {
  const SteadyTime start = SteadyNow();
  TC_ASSIGN_OR_RETURN(const auto replica, cluster.client(0).Get(options.context, artifact, {}));
  volatile std::byte last = replica->image().back();
  (void)last;
  const absl::Duration elapsed = SteadyNow() - start;
  *bytes = replica->image().size();
  if (replica->transfer()) return absl::InternalError("the replica was not ready: it was transferred");
  return elapsed;
}

Row MakeRow(const std::string& lane, const std::string& metric, uint64_t bytes, double value,
            const std::vector<double>& samples) {
  Row row{.bench = "attach",
          .lane = lane,
          .metric = metric,
          .bytes = bytes,
          .value = Summarize(samples),
          .unit = "ms"};
  row.value.median = value;
  return row;
}

}  // namespace

absl::StatusOr<Rows> RunAttach(const BenchOptions& options) {
  const uint64_t large_bytes = options.BytesOr(kGiB, 24 * kMiB);
  const int runs = options.RunsOr(1000, 3);
  TC_ASSIGN_OR_RETURN(const auto cluster,
                      BenchCluster::Start(options, {.pool_bytes = large_bytes + 64 * kMiB}));
  TC_RETURN_IF_ERROR(cluster->ImportModel(kLargeKey, large_bytes).status());
  TC_RETURN_IF_ERROR(cluster->ImportModel(kSmallKey, kMiB).status());
  TC_ASSIGN_OR_RETURN(const client::KeyInfo large, cluster->client(0).ResolveKey(options.context, kLargeKey));
  TC_ASSIGN_OR_RETURN(const client::KeyInfo small, cluster->client(0).ResolveKey(options.context, kSmallKey));

  Say(absl::StrCat("attach: ", runs, " pairs"));
  uint64_t large_image = 0, small_image = 0;
  Pairs by_id, by_key;
  for (int run = -kWarmupRuns; run < runs; ++run) {
    TC_ASSIGN_OR_RETURN(const auto slow, Attach(options, *cluster, large.artifact_id, &large_image));
    TC_ASSIGN_OR_RETURN(const auto fast, Attach(options, *cluster, small.artifact_id, &small_image));
    TC_ASSIGN_OR_RETURN(const auto slow_key, Attach(options, *cluster, kLargeKey, &large_image));
    TC_ASSIGN_OR_RETURN(const auto fast_key, Attach(options, *cluster, kSmallKey, &small_image));
    if (run < 0) continue;
    by_id.Add(absl::ToDoubleMilliseconds(slow), absl::ToDoubleMilliseconds(fast));
    by_key.Add(absl::ToDoubleMilliseconds(slow_key), absl::ToDoubleMilliseconds(fast_key));
  }
  TC_RETURN_IF_ERROR(cluster->Stop());

  Rows rows;
  for (const double percent : {50.0, 99.0, 99.9}) {
    const std::string metric = absl::StrCat("p", percent);
    const auto add = [&](const std::string& lane, const Pairs& of) {
      Row row = MakeRow(lane, metric, large_image, Percentile(of.values, percent), of.values);
      row.reference = Reference{.name = absl::StrCat("the same of ", small_image / kMiB, " MiB"),
                                .value = Summarize(of.references)};
      row.reference->value.median = Percentile(of.references, percent);
      rows.push_back(std::move(row));
    };
    add("by id", by_id);
    add("by key", by_key);
  }
  return rows;
}

}  // namespace tensorcast::bench
