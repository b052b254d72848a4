#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "global_store/service/convert.h"
#include "global_store/service/handlers.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

absl::StatusOr<std::vector<WishTarget>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::ReplicateArtifactRequest::Target>& targets) {
  std::vector<WishTarget> all;
  for (const v1::ReplicateArtifactRequest::Target& target : targets) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(target.location()));
    all.push_back({.node = target.node_id(), .location = location});
  }
  return all;
}

v1::ReplicateArtifactResponse::Result ToProto(const WishedPlace& place, const WishTarget& target) {
  v1::ReplicateArtifactResponse::Result result;
  result.set_node_id(place.node_id);
  *result.mutable_location() = rpc::ToProto(target.location);
  result.set_replica_id(place.replica_id);
  if (!place.error.ok()) *result.mutable_error() = rpc::ToProto(place.error);
  if (place.wish.has_value()) *result.mutable_wish() = global_store::ToProto(*place.wish);
  return result;
}

}  // namespace

absl::StatusOr<v1::ReplicateArtifactResponse> Handlers::ReplicateArtifact(
    const RequestContext& context, std::string_view asking, const v1::ReplicateArtifactRequest& request) {
  WishRequest wanted{.request_id = NewUuid(),
                     .artifact_id = request.artifact_id(),
                     .targets = {},
                     .asked_by = std::string(asking),
                     .traceparent = context.trace.ToTraceparent()};
  TC_ASSIGN_OR_RETURN(wanted.targets, FromProto(request.targets()));
  using Wishes = Plan<v1::ReplicateArtifactResponse>;
  return Mutate<v1::ReplicateArtifactResponse>(
      context, "ReplicateArtifact", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Wishes> {
        TC_ASSIGN_OR_RETURN(WishPlan plan, directory.PrepareWishes(wanted, now));
        Wishes wishes{.change = {.facts = std::move(plan.facts)}};
        for (size_t i = 0; i < plan.places.size(); ++i) {
          *wishes.response.add_results() = ToProto(plan.places[i], wanted.targets[i]);
        }
        return wishes;
      });
}

absl::StatusOr<v1::ListWishesResponse> Handlers::ListWishes(const RequestContext&,
                                                            const v1::ListWishesRequest& request) {
  TC_ASSIGN_OR_RETURN(const size_t page, PageSize(request.page_size()));
  const std::vector<WishView> views = coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    return directory.ListWishes(request.artifact_id(), request.page_token(), page);
  });
  v1::ListWishesResponse response;
  for (const WishView& view : views) *response.add_wishes() = global_store::ToProto(view);
  if (views.size() == page) response.set_next_page_token(Directory::PlaceOf(views.back().record));
  return response;
}

absl::StatusOr<v1::CancelWishesResponse> Handlers::CancelWishes(const RequestContext& context,
                                                                const v1::CancelWishesRequest& request) {
  TC_ASSIGN_OR_RETURN(const std::vector<WishTarget> targets, FromProto(request.targets()));
  using Cancelled = Plan<v1::CancelWishesResponse>;
  return Mutate<v1::CancelWishesResponse>(
      context, "CancelWishes", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Cancelled> {
        CancelPlan plan = directory.PrepareCancelWishes(request.artifact_id(), targets, now);
        Cancelled cancelled{.change = {.facts = std::move(plan.facts)}};
        for (const WishView& view : plan.wishes) {
          *cancelled.response.add_wishes() = global_store::ToProto(view);
        }
        return cancelled;
      });
}

}  // namespace tensorcast::global_store
