// Facts as the values that etcd keeps of them (records.proto), and back. What a value does not say (an
// artifact's id, a key's name) is in its key. Decoding: DATA_LOSS for what is not such a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "etcd/kv.pb.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::etcd {

std::string Encode(const ArtifactRecord& artifact);
std::string Encode(const KeyRecord& key);
std::string Encode(const NodeBinding& node);
std::string Encode(const TaskRecord& task);
std::string Encode(const RequestRecord& request);
std::string EncodeCounter(uint64_t value);

// `name` is what the key says behind its folder.
absl::StatusOr<ArtifactRecord> DecodeArtifact(std::string_view name, const std::string& value);
absl::StatusOr<KeyRecord> DecodeKey(std::string_view name, const std::string& value);
absl::StatusOr<NodeBinding> DecodeNode(std::string_view name, const std::string& value);
absl::StatusOr<TaskRecord> DecodeTask(std::string_view name, const std::string& value);
absl::StatusOr<std::string> DecodeResponse(const std::string& value);
absl::StatusOr<uint64_t> DecodeCounter(const mvccpb::KeyValue& pair);

// "artifact/node/location".
std::string NameOf(const TaskRecord& task);

}  // namespace tensorcast::global_store::etcd
