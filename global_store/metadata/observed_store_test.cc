// What the operations of a metadata store tell an observer.
#include "global_store/metadata/metadata_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "otel/api/span.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::global_store::observed_store_test {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;
using otel::testing::RecordedSpan;
using otel::testing::RecordedTelemetry;

// Answers every call with this.
class AnsweringStore final : public MetadataStore {
 public:
  explicit AnsweringStore(absl::Status answer) : answer_(std::move(answer)) {}
  std::string_view name() const override { return "answering"; }
  absl::Status Check() const override { return absl::OkStatus(); }
  absl::Status Commit(const WriteBatch&) override { return answer_; }
  absl::StatusOr<DurableFacts> Load() override {
    if (!answer_.ok()) return answer_;
    return DurableFacts{};
  }
  absl::StatusOr<std::string> ReadManifest(std::string_view) override {
    if (!answer_.ok()) return answer_;
    return "bytes";
  }
  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view) override {
    if (!answer_.ok()) return answer_;
    return std::nullopt;
  }
  absl::Status Purge(const PurgeTimes&) override { return answer_; }

 private:
  const absl::Status answer_;
};

struct Operation {
  std::string span;
  std::string name;
  std::function<absl::Status(MetadataStore&)> run;
};

std::vector<Operation> Operations() {
  return {
      {"MetadataStore/Put", "put", [](MetadataStore& store) { return store.Commit({}); }},
      {"MetadataStore/Load", "load", [](MetadataStore& store) { return store.Load().status(); }},
      {"MetadataStore/Get", "get", [](MetadataStore& store) { return store.ReadManifest("id").status(); }},
      {"MetadataStore/FindRequest", "find_request",
       [](MetadataStore& store) { return store.FindResponse("request").status(); }},
      {"MetadataStore/Purge", "purge", [](MetadataStore& store) { return store.Purge({}); }},
  };
}

TEST(ObservedStore, MetadataOperation_HasSpanAndIsTimed) {
  RecordedTelemetry recorded;
  const auto store = MakeObservedStore(std::make_unique<AnsweringStore>(absl::OkStatus()));
  for (const Operation& operation : Operations()) {
    SCOPED_TRACE(operation.span);
    TraceContext call;
    {
      otel::ScopedSpan scope("GlobalStore/Call");
      call = scope->context();
      EXPECT_TRUE(operation.run(*store).ok());
    }
    const RecordedSpan span = recorded.AwaitSpan(operation.span);
    EXPECT_EQ(span.parent.span_id, call.span_id);
    EXPECT_EQ(span.attribute(attr::kDbSystem), "answering");
    EXPECT_EQ(span.attribute(attr::kDbOperation), operation.name);
    EXPECT_EQ(span.error, "");
    EXPECT_EQ(recorded.Count(metrics::kMetadataOperationSeconds.id(), {"answering", operation.name}), 1);
    EXPECT_EQ(recorded.Sum(metrics::kMetadataErrors.id(), {"answering", operation.name}), 0);
  }
}

TEST(ObservedStore, FailedMetadataOperation_MarksSpanAndIsCounted) {
  RecordedTelemetry recorded;
  const auto store = MakeObservedStore(std::make_unique<AnsweringStore>(absl::DataLossError("damaged")));
  for (const Operation& operation : Operations()) {
    SCOPED_TRACE(operation.span);
    EXPECT_TRUE(absl::IsDataLoss(operation.run(*store)));
    EXPECT_EQ(recorded.AwaitSpan(operation.span).error, "DATA_LOSS");
    EXPECT_EQ(recorded.Sum(metrics::kMetadataErrors.id(), {"answering", operation.name}), 1);
  }
}

TEST(ObservedStore, MetadataWorkWithoutCall_MakesSpanOnlyOnFailure) {
  RecordedTelemetry recorded;
  const auto good = MakeObservedStore(std::make_unique<AnsweringStore>(absl::OkStatus()));
  const auto bad = MakeObservedStore(std::make_unique<AnsweringStore>(absl::InternalError("disk")));
  EXPECT_TRUE(good->Load().ok());
  EXPECT_TRUE(good->Purge({}).ok());
  EXPECT_FALSE(bad->Purge({}).ok());
  const std::vector<RecordedSpan> spans = recorded.spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name, "MetadataStore/Purge");
  EXPECT_EQ(spans[0].error, "INTERNAL");
  EXPECT_FALSE(spans[0].parent.IsValid());
  EXPECT_EQ(recorded.Count(metrics::kMetadataOperationSeconds.id(), {"answering", "purge"}), 2)
      << "metrics have both";
}

TEST(ObservedStore, MissingManifest_IsNotCountedAsFailure) {
  RecordedTelemetry recorded;
  const otel::ScopedSpan call("GlobalStore/Call");
  const auto store = MakeObservedStore(std::make_unique<AnsweringStore>(absl::NotFoundError("no manifest")));
  EXPECT_TRUE(absl::IsNotFound(store->ReadManifest("id").status()));
  EXPECT_EQ(recorded.AwaitSpan("MetadataStore/Get").error, "");
  EXPECT_EQ(recorded.Sum(metrics::kMetadataErrors.id(), {"answering", "get"}), 0);
}

TEST(ObservedStore, ObservedStoreWithoutObserver_ForwardsEveryOperation) {
  const auto store = MakeObservedStore(std::make_unique<AnsweringStore>(absl::AbortedError("x")));
  for (const Operation& operation : Operations()) EXPECT_TRUE(absl::IsAborted(operation.run(*store)));
  EXPECT_EQ(store->name(), "answering");
}

}  // namespace
}  // namespace tensorcast::global_store::observed_store_test
