#include "rpc/convert/convert.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"

namespace tensorcast::rpc {
namespace {

// Both directions read this table. A state without a pair here is UNSPECIFIED when it is sent, and refused
// when it is received.
struct StatePair {
  ReplicaState state;
  v1::ReplicaState message;
};
constexpr std::array<StatePair, 7> kStates = {{
    {ReplicaState::kAllocating, v1::REPLICA_STATE_ALLOCATING},
    {ReplicaState::kFilling, v1::REPLICA_STATE_FILLING},
    {ReplicaState::kPartial, v1::REPLICA_STATE_PARTIAL},
    {ReplicaState::kReady, v1::REPLICA_STATE_READY},
    {ReplicaState::kDraining, v1::REPLICA_STATE_DRAINING},
    {ReplicaState::kGone, v1::REPLICA_STATE_GONE},
    {ReplicaState::kFailed, v1::REPLICA_STATE_FAILED},
}};

constexpr int kMaxDetails = 16;

// What a protobuf Timestamp may hold: the years 1 to 9999.
absl::Time Bounded(absl::Time time) {
  const absl::Time first = absl::FromUnixSeconds(-62'135'596'800);
  const absl::Time last = absl::FromUnixSeconds(253'402'300'800) - absl::Nanoseconds(1);
  return std::clamp(time, first, last);
}

}  // namespace

v1::Status ToProto(const absl::Status& status) {
  v1::Status message;
  message.set_code(static_cast<int>(status.code()));
  std::string storage;
  // protobuf refuses a string field that is not UTF-8, and with it the whole message: the error of an error
  // would hide the first.
  message.set_message(std::string(ValidUtf8(status.message(), storage)));
  // By their type: absl gives them in an order that changes from run to run.
  std::map<std::string, std::string> payloads;
  status.ForEachPayload(
      [&payloads](std::string_view type, const absl::Cord& payload) { payloads.emplace(type, payload); });
  for (auto& [type, payload] : payloads) {
    google::protobuf::Any* detail = message.add_details();
    detail->set_type_url(type);
    detail->set_value(std::move(payload));
  }
  return message;
}

absl::Status FromProto(const v1::Status& status) {
  // A code of a newer version becomes UNKNOWN.
  const bool known =
      status.code() >= 0 && status.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  // The message ends in logs and on terminals, and another process wrote it.
  absl::Status result(known ? static_cast<absl::StatusCode>(status.code()) : absl::StatusCode::kUnknown,
                      Printable(status.message()));
  // A peer's message: bounded, since each payload is looked for among those before it.
  for (int i = 0; i < std::min(status.details_size(), kMaxDetails); ++i) {
    result.SetPayload(status.details(i).type_url(), absl::Cord(status.details(i).value()));
  }
  return result;
}

google::protobuf::Timestamp ToProto(absl::Time time) {
  const absl::Duration since_epoch = Bounded(time) - absl::UnixEpoch();
  // Floor, not truncation: the nanoseconds of a Timestamp count forward, before 1970 as well.
  const absl::Duration whole = absl::Floor(since_epoch, absl::Seconds(1));
  google::protobuf::Timestamp message;
  message.set_seconds(absl::ToInt64Seconds(whole));
  message.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(since_epoch - whole)));
  return message;
}

absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return Bounded(absl::UnixEpoch() + absl::Seconds(time.seconds()) + absl::Nanoseconds(time.nanos()));
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  // A Duration message holds some 10,000 years; infinity has to be something that fits and that outlasts
  // every wait.
  constexpr absl::Duration kForever = absl::Hours(24 * 365 * 100);
  const absl::Duration bounded = std::clamp(duration, -kForever, kForever);
  // Of a Duration both parts have one sign.
  const absl::Duration whole = absl::Trunc(bounded, absl::Seconds(1));
  google::protobuf::Duration message;
  message.set_seconds(absl::ToInt64Seconds(whole));
  message.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(bounded - whole)));
  return message;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

v1::Location ToProto(const Location& location) {
  v1::Location message;
  switch (location.kind) {
    case LocationKind::kGpu:
      message.set_kind(v1::LOCATION_KIND_GPU);
      message.set_device(location.device);
      break;
    case LocationKind::kCpu:
      message.set_kind(v1::LOCATION_KIND_CPU);
      break;
    case LocationKind::kDisk:
      message.set_kind(v1::LOCATION_KIND_DISK);
      break;
  }
  return message;
}

absl::StatusOr<Location> FromProto(const v1::Location& location) {
  switch (location.kind()) {
    // Nothing said: host memory, the default of every request.
    case v1::LOCATION_KIND_UNSPECIFIED:
    case v1::LOCATION_KIND_CPU:
      return Location{LocationKind::kCpu, 0};
    case v1::LOCATION_KIND_DISK:
      return Location{LocationKind::kDisk, 0};
    case v1::LOCATION_KIND_GPU:
      if (location.device() < 0) {
        return absl::InvalidArgumentError(absl::StrCat("read a location: there is no device gpu:",
                                                       location.device(), "; give gpu:0 or a higher number"));
      }
      return Location{LocationKind::kGpu, location.device()};
    default:
      return absl::InvalidArgumentError(absl::StrCat("read a location: this process does not know the kind ",
                                                     static_cast<int>(location.kind()),
                                                     "; upgrade the older of client and server"));
  }
}

v1::ReplicaState ToProto(ReplicaState state) {
  auto it =
      std::find_if(kStates.begin(), kStates.end(), [state](const StatePair& p) { return p.state == state; });
  return it == kStates.end() ? v1::REPLICA_STATE_UNSPECIFIED : it->message;
}

// A state that this version does not know is refused, not guessed: the store decides by it.
absl::StatusOr<ReplicaState> FromProto(v1::ReplicaState state) {
  auto it = std::find_if(kStates.begin(), kStates.end(),
                         [state](const StatePair& p) { return p.message == state; });
  if (it == kStates.end()) {
    return absl::InvalidArgumentError(absl::StrCat("read a replica: this process does not know the state ",
                                                   static_cast<int>(state),
                                                   "; upgrade the older of client and server"));
  }
  return it->state;
}

v1::Replica ToProto(const ReplicaInfo& replica) {
  v1::Replica message;
  message.set_replica_id(replica.id);
  message.set_artifact_id(replica.artifact_id);
  message.set_node_id(replica.node_id);
  *message.mutable_location() = ToProto(replica.location);
  // The UUID stands beside the ordinal, since other processes may number GPUs in another way.
  message.mutable_location()->set_device_uuid(replica.device_uuid);
  message.set_state(ToProto(replica.state));
  message.set_image_bytes(replica.image_bytes);
  message.set_chunks_total(replica.chunks_total);
  message.set_chunks_present(replica.chunks_present);
  message.set_chunks_unverified(replica.chunks_unverified);
  message.set_leases(replica.leases);
  message.set_pinned(replica.pinned);
  *message.mutable_last_used() = ToProto(ToWallTime(replica.last_used));
  return message;
}

// INVALID_ARGUMENT for a location or a state that is not known: such a replica could not be counted.
absl::StatusOr<ReplicaInfo> FromProto(const v1::Replica& replica) {
  ReplicaInfo info;
  info.id = replica.replica_id();
  info.artifact_id = replica.artifact_id();
  info.node_id = replica.node_id();
  TC_ASSIGN_OR_RETURN(info.location, FromProto(replica.location()));
  info.device_uuid = replica.location().device_uuid();
  TC_ASSIGN_OR_RETURN(info.state, FromProto(replica.state()));
  info.image_bytes = replica.image_bytes();
  info.chunks_total = replica.chunks_total();
  info.chunks_present = replica.chunks_present();
  info.chunks_unverified = replica.chunks_unverified();
  info.leases = replica.leases();
  info.pinned = replica.pinned();
  info.last_used = FromWallTime(FromProto(replica.last_used()));
  return info;
}

v1::Origin ToProto(const Origin& origin) {
  v1::Origin message;
  message.set_node_id(origin.node_id);
  message.set_untraceable(origin.untraceable);
  message.set_compared(origin.compared);
  for (const ObjectIdentity& object : origin.objects) {
    v1::Origin::Object* sent = message.add_objects();
    sent->set_uri(object.uri);
    sent->set_bytes(object.bytes);
    sent->set_version(object.version);
  }
  return message;
}

Origin FromProto(const v1::Origin& message) {
  Origin origin{.node_id = message.node_id(),
                .objects = {},
                .untraceable = message.untraceable(),
                .compared = message.compared()};
  for (const v1::Origin::Object& object : message.objects()) {
    origin.objects.push_back({.uri = object.uri(), .bytes = object.bytes(), .version = object.version()});
  }
  return origin;
}

}  // namespace tensorcast::rpc
