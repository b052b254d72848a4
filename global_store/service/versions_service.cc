#include "global_store/service/versions_service.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "global_store/service/convert.h"
#include "proto/versions.grpc.pb.h"
#include "rpc/admission_queue.h"
#include "rpc/call_contexts.h"
#include "rpc/convert/convert.h"
#include "rpc/handlers.h"

namespace tensorcast::global_store {
namespace {

// A change is one transaction of the metadata store, of which etcd takes some thousand operations.
constexpr size_t kMaxTargets = 1000;
constexpr size_t kMaxNameBytes = 128;
constexpr uint32_t kMaxMembers = 10'000;
constexpr absl::Duration kDefaultLostAfter = absl::Seconds(15);
// Shorter than the network may be silent for.
constexpr absl::Duration kShortestLostAfter = absl::Seconds(1);

absl::StatusOr<std::vector<TaskTarget>> TargetsOf(
    const google::protobuf::RepeatedPtrField<v1::FollowKeyRequest::Target>& targets,
    std::string_view operation) {
  if (static_cast<size_t>(targets.size()) > kMaxTargets) {
    return absl::InvalidArgumentError(absl::StrCat(operation, ": ", targets.size(),
                                                   " targets are too many; name at most ", kMaxTargets,
                                                   " in one call"));
  }
  std::vector<TaskTarget> all;
  for (const v1::FollowKeyRequest::Target& target : targets) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(target.location()));
    all.push_back({.node = target.node_id(), .location = location});
  }
  return all;
}

v1::Follower ToProto(const FollowerView& view) {
  v1::Follower follower;
  follower.set_key(view.record.key);
  follower.set_node_id(view.record.node_id);
  follower.set_node_name(view.record.node_name);
  *follower.mutable_location() = rpc::ToProto(view.record.location);
  follower.set_newest_revision(view.newest_revision);
  follower.set_artifact_id(view.artifact_id);
  follower.set_revision(view.revision);
  if (view.task.has_value()) *follower.mutable_task() = global_store::ToProto(*view.task);
  return follower;
}

absl::Status CheckName(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes && IsPrintable(name) && name.find('/') == name.npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("agree on a version: the ", what, " name ", QuoteName(name),
                                                 " is not 1 to ", kMaxNameBytes,
                                                 " printable bytes without '/'; choose another name"));
}

GroupVersion FromProto(const v1::GroupVersion& version) {
  return {.revision = version.revision(), .artifact_id = version.artifact_id()};
}

v1::GroupVersion ToProto(const GroupVersion& version) {
  v1::GroupVersion message;
  message.set_revision(version.revision);
  message.set_artifact_id(version.artifact_id);
  return message;
}

absl::StatusOr<OnLostMember> FromProto(v1::LostMember on_lost) {
  switch (on_lost) {
    case v1::LOST_MEMBER_WAIT:
      return OnLostMember::kWait;
    case v1::LOST_MEMBER_FAIL:
      return OnLostMember::kFail;
    case v1::LOST_MEMBER_DROP:
      return OnLostMember::kDrop;
    default:
      return absl::InvalidArgumentError(absl::StrCat("agree on a version: there is no policy ",
                                                     static_cast<int>(on_lost),
                                                     " for lost members; choose wait, fail or drop"));
  }
}

absl::StatusOr<GroupCall> FromProto(const v1::AgreeOnVersionRequest& request) {
  TC_RETURN_IF_ERROR(CheckKeyName(request.key()));
  TC_RETURN_IF_ERROR(CheckName("group", request.group()));
  TC_RETURN_IF_ERROR(CheckName("member", request.member()));
  TC_RETURN_IF_ERROR(CheckName("instance", request.instance()));
  if (request.size() == 0 || request.size() > kMaxMembers) {
    return absl::InvalidArgumentError(absl::StrCat("agree on a version of ", request.key(),
                                                   ": the group has ", request.size(),
                                                   " members; give a size of 1 to ", kMaxMembers));
  }
  GroupCall call{.key = request.key(),
                 .group = request.group(),
                 .size = request.size(),
                 .lost_after = kDefaultLostAfter,
                 .member = request.member(),
                 .instance = request.instance(),
                 .prepared = FromProto(request.prepared()),
                 .preparing = request.preparing_revision(),
                 .known = request.known_revision(),
                 .leaves = request.leaves()};
  TC_ASSIGN_OR_RETURN(call.on_lost, FromProto(request.on_lost()));
  if (request.has_lost_after()) call.lost_after = rpc::FromProto(request.lost_after());
  if (call.lost_after < kShortestLostAfter) {
    return absl::InvalidArgumentError(absl::StrCat(
        "agree on a version of ", request.key(), ": lost_after is ", absl::FormatDuration(call.lost_after),
        "; give at least ", absl::FormatDuration(kShortestLostAfter)));
  }
  return call;
}

v1::AgreeOnVersionResponse ToProto(const GroupAnswer& answer) {
  v1::AgreeOnVersionResponse response;
  if (answer.announced.has_value()) *response.mutable_announced() = ToProto(*answer.announced);
  if (answer.prepare.has_value()) *response.mutable_prepare() = ToProto(*answer.prepare);
  response.mutable_waits_for()->Assign(answer.waits_for.begin(), answer.waits_for.end());
  return response;
}

class VersionsService final : public v1::Versions::CallbackService {
 public:
  VersionsService(Coordinator* coordinator, std::shared_ptr<GroupRounds> rounds,
                  rpc::AdmissionQueue* admission)
      : coordinator_(*coordinator),
        rounds_(std::move(rounds)),
        line_(admission->line(rpc::AdmissionQueue::Class::kCall)) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* FollowKey(Call* call, const v1::FollowKeyRequest* request,
                   v1::FollowKeyResponse* response) override {
    return rpc::HandleUnary(
        call, line_, [this, request, response, asking = rpc::CallerOf(*call).asking](const RequestContext&) {
          return Follow(asking, *request, response);
        });
  }
  Unary* ListFollowers(Call* call, const v1::ListFollowersRequest* request,
                       v1::ListFollowersResponse* response) override {
    return rpc::HandleUnary(
        call, line_, [this, request, response](const RequestContext&) { return List(*request, response); });
  }
  Unary* UnfollowKey(Call* call, const v1::UnfollowKeyRequest* request,
                     v1::UnfollowKeyResponse* response) override {
    return rpc::HandleUnary(call, line_, [this, request, response](const RequestContext&) {
      return Unfollow(*request, response);
    });
  }
  Unary* AgreeOnVersion(Call* call, const v1::AgreeOnVersionRequest* request,
                        v1::AgreeOnVersionResponse* response) override {
    return rpc::HandleUnaryAsync(
        call, line_, [this, request, response](const RequestContext& context, const rpc::Finisher& finisher) {
          const absl::StatusOr<GroupCall> member = FromProto(*request);
          if (!member.ok()) return finisher.Finish(member.status());
          // The call is held without a thread. `response` lives until the finisher has run.
          rounds_->Take(context, *member, [response, finisher](const absl::StatusOr<GroupAnswer>& answer) {
            if (answer.ok()) *response = ToProto(*answer);
            finisher.Finish(answer.status());
          });
        });
  }

 private:
  // Repeating it adds nothing, so its answer is not recorded.
  absl::Status Follow(const std::string& asking, const v1::FollowKeyRequest& request,
                      v1::FollowKeyResponse* response) {
    FollowRequest wanted{.key = request.key(), .targets = {}, .asked_by = asking};
    TC_ASSIGN_OR_RETURN(wanted.targets, TargetsOf(request.targets(), "follow a key"));
    FollowPlan plan;
    TC_RETURN_IF_ERROR(coordinator_
                           .Mutate("",
                                   [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
                                     TC_ASSIGN_OR_RETURN(plan, directory.followers().Prepare(wanted, now));
                                     return Change{.facts = plan.facts};
                                   })
                           .status());
    coordinator_.WithDirectory([&](const Directory& directory, SteadyTime) {
      // The change is applied by now, so the views show the tasks that it made.
      for (size_t i = 0; i < plan.places.size(); ++i) {
        const FollowPlan::Place& place = plan.places[i];
        v1::FollowKeyResponse::Result& result = *response->add_results();
        result.set_node_id(place.error.ok() ? place.follower.node_id : wanted.targets[i].node);
        *result.mutable_location() = rpc::ToProto(wanted.targets[i].location);
        if (place.error.ok()) {
          *result.mutable_follower() = ToProto(directory.followers().ViewOf(place.follower));
        } else {
          *result.mutable_error() = rpc::ToProto(place.error);
        }
      }
      return true;
    });
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListFollowersRequest& request, v1::ListFollowersResponse* response) {
    TC_ASSIGN_OR_RETURN(const size_t page, PageSize(request.page_size()));
    const std::vector<FollowerView> views =
        coordinator_.WithDirectory([&](const Directory& directory, SteadyTime) {
          return directory.followers().List(request.key(), request.page_token(), page);
        });
    size_t bytes = 0;
    for (const FollowerView& view : views) {
      v1::Follower& follower = *response->add_followers() = ToProto(view);
      bytes += follower.ByteSizeLong();
      if (bytes >= kPageBytes) break;  // a task may tell a long error
    }
    const auto listed = static_cast<size_t>(response->followers_size());
    if (listed == page || listed < views.size()) {
      response->set_next_page_token(FollowerIdOf(views[listed - 1].record));
    }
    return absl::OkStatus();
  }

  absl::Status Unfollow(const v1::UnfollowKeyRequest& request, v1::UnfollowKeyResponse* response) {
    TC_ASSIGN_OR_RETURN(const std::vector<TaskTarget> targets,
                        TargetsOf(request.targets(), "stop following a key"));
    UnfollowPlan plan;
    // Each part is a change of its own. What a failure leaves, a repeated call removes.
    do {
      TC_RETURN_IF_ERROR(coordinator_
                             .Mutate("",
                                     [&](const Directory& directory, absl::Time) -> absl::StatusOr<Change> {
                                       plan = directory.followers().PrepareRemove(request.key(), targets,
                                                                                  kMaxTargets);
                                       return Change{.facts = plan.facts};
                                     })
                             .status());
      for (const FollowerRecord& follower : plan.followers) {
        *response->add_followers() = ToProto(FollowerView{.record = follower});
      }
    } while (plan.followers.size() == kMaxTargets);
    return absl::OkStatus();
  }

  Coordinator& coordinator_;
  const std::shared_ptr<GroupRounds> rounds_;
  rpc::TaskRunner& line_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeVersionsService(Coordinator* coordinator,
                                                   std::shared_ptr<GroupRounds> rounds,
                                                   rpc::AdmissionQueue* admission) {
  return std::make_unique<VersionsService>(coordinator, std::move(rounds), admission);
}

}  // namespace tensorcast::global_store
