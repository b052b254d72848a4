// The queue by itself, without an engine. The tests of core/engine have all that an ingest does.
#include "core/ingest/ingest_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "base/testing/no_threads.h"
#include "core/testing/test_artifact.h"

namespace tensorcast::ingest_queue_test {
namespace {

TEST(IngestQueue, RequestWithoutThreads_IsRefused) {
  Notifier notifier(/*listener=*/nullptr);
  ReplicaTable table("node", /*devices=*/nullptr, &notifier);
  const IngestRunner runner(IngestRunnerOptions{.table = &table});
  ReplicaRemoval removal(&table, /*devices=*/nullptr, /*store=*/nullptr, /*disk_names=*/nullptr,
                         /*guard=*/nullptr);
  IngestQueue queue(&table, &runner, &removal, &notifier, /*max_running=*/2);
  const testing::TestArtifact artifact = testing::MakeChunkedArtifact(1, 2);
  absl::Status refused;
  const bool tried = testing::WithoutThreads([&] {
    refused =
        queue.Request(RequestContext(), {.manifest = artifact.manifest, .location = {LocationKind::kCpu, 0}})
            .status();
  });
  if (!tried) GTEST_SKIP() << "the kernel does not let this test refuse threads";
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(queue.active(), 0);
}

}  // namespace
}  // namespace tensorcast::ingest_queue_test
