// The directory's values to and from the protobuf contract; those of core are rpc/convert's. Private to this
// folder. Errors: INVALID_ARGUMENT for a message that leaves out or garbles what the contract asks for.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "global_store/directory/types.h"
#include "proto/global_store.pb.h"

namespace tensorcast::global_store {

NodeIdentity FromProto(const v1::NodeIdentity& identity);
NodeFacts FromProto(const v1::Node& node);
absl::StatusOr<std::vector<PoolFacts>> FromProto(const google::protobuf::RepeatedPtrField<v1::Pool>& pools);
absl::StatusOr<ReplicaFacts> FromProto(const v1::Replica& replica);
absl::StatusOr<Origin> FromProto(const v1::Origin& origin);

void ToProto(const NodeView& node, v1::Node* out);
void ToProto(const ReplicaFacts& replica, v1::Replica* out);
void ToProto(const ArtifactView& artifact, v1::Artifact* out);
void ToProto(const KeyRecord& key, v1::Key* out);
void ToProto(const Origin& origin, v1::Origin* out);

}  // namespace tensorcast::global_store
