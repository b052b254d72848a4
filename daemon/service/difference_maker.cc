#include "daemon/service/difference_maker.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_encoder.h"
#include "core/source/chunk_source.h"
#include "daemon/service/replicas.h"
#include "daemon/session/sessions.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {
namespace {

namespace attr = otel::attr;

constexpr Location kHostMemory{LocationKind::kCpu};
constexpr absl::Duration kMaxBring = absl::Minutes(10);  // of a base for a put that does not require it

// The first way in which the tensors of two versions differ, beside their bytes; empty: in none.
std::string FindMismatch(const ImageLayout& base, const ImageLayout& target) {
  for (size_t i = 0; i < std::min(base.tensors.size(), target.tensors.size()); ++i) {
    const Tensor& old = base.tensors[i];
    const Tensor& now = target.tensors[i];
    if (now.name != old.name) {
      return absl::StrCat("tensor ", i, " has the name ", now.name, ", and tensor ", i,
                          " of the base has the name ", old.name);
    }
    if (now.dtype != old.dtype) {
      return absl::StrCat("tensor ", now.name, " has the dtype ", DTypeName(now.dtype),
                          ", and the tensor of the base has ", DTypeName(old.dtype));
    }
    if (now.shape != old.shape) {
      return absl::StrCat("tensor ", now.name, " has another shape than in the base");
    }
  }
  if (base.tensors.size() != target.tensors.size()) {
    return absl::StrCat("the new version has ", target.tensors.size(), " tensors, and the base has ",
                        base.tensors.size());
  }
  return base == target ? ""
                        : "the image of the new version is cut into other chunks than the image of the base";
}

// Of what was encoded, which is in this process until the ingest has copied it.
class EncodedSource final : public ChunkSource {
 public:
  explicit EncodedSource(EncodedDifference difference) : difference_(std::move(difference)) {
    info_ = {.type = SourceType::kLocal, .lane = std::string(kMemoryLane), .name = "the encoded difference"};
  }
  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return 1; }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    TC_RETURN_IF_ERROR(CheckRange(info_, request, difference_.layout.image_bytes));
    TC_RETURN_IF_ERROR(context.Check(DescribeFetch(info_, request)));
    uint64_t offset = request.range.offset;
    for (const HostSpan span : request.destination) {
      difference_.CopyImage({offset, span.size()}, span.data());
      offset += span.size();
    }
    return std::nullopt;
  }

 private:
  const EncodedDifference difference_;
  SourceInfo info_;
};

}  // namespace

absl::Status DifferencePlan::GiveUp(std::string_view outcome, std::string why) {
  otel::metrics::kDifferences.Add(1, {outcome});
  base = nullptr;
  encoding = nullptr;
  no_difference = std::move(why);
  if (!required) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("put with a required difference: ", no_difference,
                                                    "; put the artifact without requiring a difference"));
}

// Each reason for which no difference can be made ends in GiveUp, which counts it and fails the put where a
// difference is required. The lease on the base ends with this call: the target may need the base's room.
absl::StatusOr<DifferencePlan> DifferenceMaker::Plan(const RequestContext& context,
                                                     const v1::DifferenceRequest& request,
                                                     const std::string& key, IngestRequest& target) const {
  DifferencePlan plan{.base = nullptr, .required = request.required(), .no_difference = ""};
  // The configuration means keys: a put without one has no earlier version.
  const bool by_default = request.base().empty();
  const std::string& named = by_default ? options_.default_base : request.base();
  const auto give_up = [&plan](std::string_view outcome, std::string why) -> absl::StatusOr<DifferencePlan> {
    TC_RETURN_IF_ERROR(plan.GiveUp(outcome, std::move(why)));
    return std::move(plan);
  };
  if (named == "none" || (by_default && key.empty())) {
    if (!plan.required) return plan;
    return give_up("no_base", "the put names no base");
  }
  if (named == "auto" && key.empty()) {
    return give_up("no_base", "base auto needs a key, and the put names no key");
  }
  std::string base_id = named;
  // No key has such a name.
  if (BeginsAsArtifactId(named) && !IsArtifactId(named)) {
    return give_up("no_base", absl::StrCat("the base ", QuoteName(named), " is not an artifact id"));
  }
  if (!IsArtifactId(named)) {
    const std::string& key_of_base = named == "auto" ? key : named;
    const absl::StatusOr<v1::ResolveKeyResponse> bound = options_.known_keys->Resolve(context, key_of_base);
    if (absl::IsNotFound(bound.status())) {
      return give_up("no_base", absl::StrCat("key ", key_of_base, " is not bound yet"));
    }
    if (!bound.ok()) return give_up("no_base", std::string(bound.status().message()));
    base_id = bound->key().artifact_id();
  }
  if (target.location != kHostMemory) {
    return give_up("not_in_memory", absl::StrCat("the new version is put to ", target.location.ToString(),
                                                 ", and versions are compared in host memory"));
  }
  absl::StatusOr<std::shared_ptr<const Manifest>> found =
      FindManifest(context, *options_.engine, *options_.global_store, base_id);
  if (!found.ok()) {
    return give_up("not_in_memory", absl::StrCat("the base ", base_id,
                                                 " is not in this node's host memory, and its "
                                                 "manifest was not found: ",
                                                 found.status().message()));
  }
  std::shared_ptr<const Manifest> manifest = *std::move(found);
  if (manifest->kind() != ArtifactKind::kTensors || target.new_kind != ArtifactKind::kTensors) {
    return give_up("other_tensors", manifest->kind() != ArtifactKind::kTensors
                                        ? absl::StrCat("the base ", base_id, " is not an artifact of tensors")
                                        : "the new version is not an artifact of tensors");
  }
  if (std::string why = FindMismatch(manifest->layout(), target.new_layout); !why.empty()) {
    return give_up("other_tensors", std::move(why));
  }
  if (const absl::Status brought = BringBase(context, base_id, plan.required); !brought.ok()) {
    return give_up("not_in_memory", std::string(brought.message()));
  }
  plan.base = std::move(manifest);
  plan.encoding = std::make_shared<DifferenceEncoding>(options_.engine, plan.base, context);
  target.sources = plan.encoding->Wrap(std::move(target.sources));
  return plan;
}

absl::Status DifferenceMaker::BringBase(const RequestContext& context, const std::string& base_id,
                                        bool required) const {
  if (options_.engine->LeaseArtifact(base_id, kHostMemory).ok()) return absl::OkStatus();
  const std::string missing = absl::StrCat("the base ", base_id, " is not in this node's host memory");
  const absl::StatusOr<Copies> copies = options_.global_store->FindCopies(context, base_id);
  if (!copies.ok()) return Annotate(copies.status(), missing);
  bool here = false;
  std::set<std::string_view> others;
  for (const v1::Replica& replica : copies->replicas) {
    if (replica.node_id() == options_.node_id) {
      here = true;
    } else if (replica.location().kind() != v1::LOCATION_KIND_DISK) {
      others.insert(replica.node_id());
    }
  }
  if (!required && others.size() < (here ? 1 : 2)) {
    return absl::FailedPreconditionError(absl::StrCat(
        missing, others.empty()
                     ? ", and no other node has the base in memory, so no other node could use the difference"
                     : ", and only one other node has the base in memory: a transfer of the base "
                       "from that node would cost as many bytes as the difference saves"));
  }
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(base_id);
  request.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  RequestContext bring = context;
  // A put that goes on without a difference keeps time for itself, also where no source gives the base.
  if (!required) bring.deadline = SteadyNow() + std::min(kMaxBring, TimeLeft(context.deadline) / 2);
  return Annotate(options_.materializer->Materialize(bring, request, nullptr).status(), missing);
}

absl::StatusOr<std::unique_ptr<IngestRequest>> DifferenceMaker::Encode(const RequestContext& context,
                                                                       DifferencePlan& plan,
                                                                       const ReplicaLease& target) const {
  const std::string base_id = plan.base->id();
  const std::string& target_id = target.manifest()->id();
  const auto give_up = [&plan](std::string_view outcome,
                               std::string why) -> absl::StatusOr<std::unique_ptr<IngestRequest>> {
    TC_RETURN_IF_ERROR(plan.GiveUp(outcome, std::move(why)));
    return nullptr;
  };
  if (base_id == target_id) return give_up("same", "the new version is the base itself");
  const std::shared_ptr<DifferenceEncoding> encoding = std::exchange(plan.encoding, nullptr);
  // It began with the first chunk of the target's ingest.
  otel::Span span(
      "Difference/Encode", context,
      {{attr::kArtifactId, target_id}, {attr::kSizeBytes, target.manifest()->layout().image_bytes}},
      {.start = encoding->begun()});
  absl::StatusOr<std::optional<EncodedDifference>> encoded = span.Record(encoding->Finish(context, target));
  for (const TraceContext& made_by : {encoding->base_made_by(), target.made_by()}) {
    if (made_by.IsValid()) span.AddLink(made_by);
  }
  TC_RETURN_IF_ERROR(context.Check("encode the difference"));
  if (absl::IsNotFound(encoded.status())) {
    return give_up("not_in_memory",
                   absl::StrCat("the base ", base_id, " was evicted while the new version was copied"));
  }
  if (!encoded.ok()) {
    return give_up("no_room",
                   absl::StrCat("the difference could not be encoded: ", encoded.status().message()));
  }
  if (!encoded->has_value()) {
    return give_up("too_large", "the difference is larger than half of the new version");
  }
  auto ingest = std::make_unique<IngestRequest>();
  ingest->location = kHostMemory;
  ingest->new_layout = (*encoded)->layout;
  ingest->new_metadata = DifferenceMetadata({.base = base_id, .target = target_id});
  ingest->new_kind = ArtifactKind::kDifference;
  // The source owns the records: their scratch memory goes back to the pool when the ingest drops the source.
  ingest->sources = MakeSingleSourceProvider(std::make_unique<EncodedSource>(**std::move(encoded)));
  return ingest;
}

}  // namespace tensorcast::daemon
