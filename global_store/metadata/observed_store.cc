#include <type_traits>
#include <utility>

#include "base/steady_time.h"
#include "base/upkeep.h"
#include "global_store/metadata/metadata_store.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast::global_store {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;

absl::Status StatusOf(const absl::Status& status) { return status; }
template <class Value>
absl::Status StatusOf(const absl::StatusOr<Value>& result) {
  return result.status();
}

class ObservedStore final : public MetadataStore {
 public:
  explicit ObservedStore(std::unique_ptr<MetadataStore> store) : store_(std::move(store)) {}

  std::string_view name() const override { return store_->name(); }
  absl::Status Check() const override { return store_->Check(); }

  absl::Status Commit(const WriteBatch& batch) override {
    return Observe("MetadataStore/Put", "put", [&] { return store_->Commit(batch); });
  }
  absl::StatusOr<DurableFacts> Load() override {
    return Observe("MetadataStore/Load", "load", [&] { return store_->Load(); });
  }
  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) override {
    return Observe("MetadataStore/Get", "get", [&] { return store_->ReadManifest(artifact_id); });
  }
  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override {
    return Observe("MetadataStore/FindRequest", "find_request",
                   [&] { return store_->FindResponse(request); });
  }
  absl::Status Purge(const PurgeTimes& before) override {
    return Observe("MetadataStore/Purge", "purge", [&] { return store_->Purge(before); });
  }

 private:
  template <class Work>
  std::invoke_result_t<Work> Observe(std::string_view span_name, std::string_view operation, Work work) {
    // Off costs this branch.
    if (!otel::IsTracing() && !otel::IsMeasuring()) return work();
    // What no request asked for: the load at the start, purges, how tasks ended.
    const TraceContext& asked = otel::CurrentContext();
    otel::Span span(span_name, asked.IsValid() ? asked : NewUpkeepTrace(),
                    {{attr::kDbSystem, name()}, {attr::kDbOperation, operation}});
    const SteadyTime start = SteadyNow();
    auto result = work();
    metrics::kMetadataOperationSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - start),
                                              {name(), operation});
    // What was asked for and is not there is an answer.
    if (const absl::Status status = StatusOf(result); !status.ok() && !absl::IsNotFound(status)) {
      metrics::kMetadataErrors.Add(1, {name(), operation});
      span.SetError(status);
    }
    return result;
  }

  const std::unique_ptr<MetadataStore> store_;
};

}  // namespace

std::unique_ptr<MetadataStore> MakeObservedStore(std::unique_ptr<MetadataStore> store) {
  return std::make_unique<ObservedStore>(std::move(store));
}

}  // namespace tensorcast::global_store
