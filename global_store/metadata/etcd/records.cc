#include "global_store/metadata/etcd/records.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "etcd/records.pb.h"

namespace tensorcast::global_store::etcd {
namespace {

// What cannot be read is DATA_LOSS that names the record: a start must not go on without it.
template <class Record>
absl::StatusOr<Record> Parse(std::string_view what, std::string_view name, const std::string& value) {
  Record record;
  if (record.ParseFromString(value)) return record;
  return absl::DataLossError(absl::StrCat("etcd: what is kept of ", what, " ", name, " cannot be read"));
}

}  // namespace

std::string Encode(const ArtifactRecord& artifact) {
  record::Artifact encoded;
  encoded.set_image_bytes(artifact.image_bytes);
  encoded.set_chunk_bytes(artifact.chunk_bytes);
  encoded.set_tensor_count(artifact.tensor_count);
  encoded.set_created_ns(absl::ToUnixNanos(artifact.created));
  encoded.set_updated_ns(absl::ToUnixNanos(artifact.updated));
  encoded.set_deleted(artifact.deleted);
  encoded.set_versioned(artifact.versioned);
  for (const Origin& origin : artifact.origins) encoded.add_origins(EncodeOrigin(origin));
  return encoded.SerializeAsString();
}

std::string Encode(const KeyRecord& key) {
  record::Key encoded;
  encoded.set_artifact_id(key.artifact_id);
  encoded.set_revision(key.revision);
  encoded.set_updated_ns(absl::ToUnixNanos(key.updated));
  encoded.set_deleted(key.deleted);
  encoded.set_keep(key.keep);
  for (const KeyVersion& version : key.earlier) {
    record::KeyVersion& added = *encoded.add_earlier();
    added.set_artifact_id(version.artifact_id);
    added.set_revision(version.revision);
    added.set_bound_ns(absl::ToUnixNanos(version.bound));
  }
  return encoded.SerializeAsString();
}

std::string Encode(const NodeBinding& node) {
  record::Node encoded;
  encoded.set_name(node.name);
  return encoded.SerializeAsString();
}

std::string Encode(const TaskRecord& task) {
  record::ReplicationTask encoded;
  encoded.set_task_id(task.task_id);
  encoded.set_node_name(task.node_name);
  encoded.set_asked_by(task.asked_by);
  encoded.set_traceparent(task.traceparent);
  encoded.set_state(static_cast<uint32_t>(task.state));
  encoded.set_failures(task.failures);
  // Raw: a code of a newer version stays as it is.
  encoded.set_error_code(task.error.raw_code());
  encoded.set_error(std::string(task.error.message()));
  encoded.set_created_ns(absl::ToUnixNanos(task.created));
  encoded.set_updated_ns(absl::ToUnixNanos(task.updated));
  return encoded.SerializeAsString();
}

std::string Encode(const RequestRecord& request) {
  record::Request encoded;
  encoded.set_response(request.response);
  encoded.set_recorded_ns(absl::ToUnixNanos(request.recorded));
  return encoded.SerializeAsString();
}

std::string EncodeCounter(uint64_t value) {
  record::Counter counter;
  counter.set_value(value);
  return counter.SerializeAsString();
}

absl::StatusOr<uint64_t> DecodeCounter(const mvccpb::KeyValue& pair) {
  TC_ASSIGN_OR_RETURN(const record::Counter counter,
                      Parse<record::Counter>("counter", pair.key(), pair.value()));
  return counter.value();
}

absl::StatusOr<ArtifactRecord> DecodeArtifact(std::string_view name, const std::string& value) {
  TC_ASSIGN_OR_RETURN(const record::Artifact encoded, Parse<record::Artifact>("artifact", name, value));
  ArtifactRecord artifact{.artifact_id = std::string(name),
                          .image_bytes = encoded.image_bytes(),
                          .chunk_bytes = encoded.chunk_bytes(),
                          .tensor_count = encoded.tensor_count(),
                          .created = absl::FromUnixNanos(encoded.created_ns()),
                          .deleted = encoded.deleted(),
                          .updated = absl::FromUnixNanos(encoded.updated_ns()),
                          .versioned = encoded.versioned()};
  for (const std::string& bytes : encoded.origins()) {
    absl::StatusOr<Origin> origin = DecodeOrigin(bytes);
    if (!origin.ok()) {
      return absl::DataLossError(absl::StrCat("etcd: artifact ", name, ": ", origin.status().message()));
    }
    artifact.origins.push_back(*std::move(origin));
  }
  return artifact;
}

absl::StatusOr<KeyRecord> DecodeKey(std::string_view name, const std::string& value) {
  TC_ASSIGN_OR_RETURN(const record::Key encoded, Parse<record::Key>("key", name, value));
  KeyRecord key{.name = std::string(name),
                .artifact_id = encoded.artifact_id(),
                .revision = encoded.revision(),
                .updated = absl::FromUnixNanos(encoded.updated_ns()),
                .deleted = encoded.deleted(),
                .keep = encoded.keep()};
  for (const record::KeyVersion& version : encoded.earlier()) {
    key.earlier.push_back({.artifact_id = version.artifact_id(),
                           .revision = version.revision(),
                           .bound = absl::FromUnixNanos(version.bound_ns())});
  }
  return key;
}

absl::StatusOr<NodeBinding> DecodeNode(std::string_view name, const std::string& value) {
  TC_ASSIGN_OR_RETURN(const record::Node encoded, Parse<record::Node>("node", name, value));
  return NodeBinding{.node_id = std::string(name), .name = encoded.name()};
}

// A task's name is its place, ARTIFACT/NODE/LOCATION (NameOf), so these three are not in the value.
absl::StatusOr<TaskRecord> DecodeTask(std::string_view name, const std::string& value) {
  TC_ASSIGN_OR_RETURN(const record::ReplicationTask encoded,
                      Parse<record::ReplicationTask>("task", name, value));
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  absl::StatusOr<Location> location = absl::DataLossError("no location");
  if (parts.size() == 3) location = Location::Parse(parts[2]);
  if (!location.ok() || encoded.state() > static_cast<uint32_t>(TaskState::kFailed)) {
    return absl::DataLossError(absl::StrCat("etcd: task ", name, " has no location or no state"));
  }
  return TaskRecord{
      .task_id = encoded.task_id(),
      .artifact_id = parts[0],
      .node_id = parts[1],
      .location = *location,
      .node_name = encoded.node_name(),
      .asked_by = encoded.asked_by(),
      .traceparent = encoded.traceparent(),
      .state = static_cast<TaskState>(encoded.state()),
      .failures = encoded.failures(),
      .error = absl::Status(static_cast<absl::StatusCode>(encoded.error_code()), encoded.error()),
      .created = absl::FromUnixNanos(encoded.created_ns()),
      .updated = absl::FromUnixNanos(encoded.updated_ns())};
}

absl::StatusOr<std::string> DecodeResponse(const std::string& value) {
  TC_ASSIGN_OR_RETURN(record::Request encoded, Parse<record::Request>("request", "", value));
  return std::move(*encoded.mutable_response());
}

std::string NameOf(const TaskRecord& task) {
  return absl::StrCat(task.artifact_id, "/", task.node_id, "/", task.location.ToString());
}

}  // namespace tensorcast::global_store::etcd
