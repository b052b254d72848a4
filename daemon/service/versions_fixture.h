// A node with versions of one model, for the tests of this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon {

class VersionsTest : public ServiceTest {
 protected:
  // A model with the artifact's tensors, in which one percent of the bytes differ between versions.
  testing::TestArtifact MakeVersion(int version) const {
    testing::TestArtifact next = artifact;
    for (uint64_t i = 0; i < next.image.size(); i += 100) next.image[i] ^= static_cast<std::byte>(version);
    return next;
  }
  std::string WriteVersion(int version) { return Write(absl::StrCat("v", version), MakeVersion(version)); }
  std::string Write(const std::string& name, const testing::TestArtifact& model) {
    std::string path = absl::StrCat(folder, "/models/", name, ".safetensors");
    const absl::Status written = WriteSafetensors(path, model.layout, {}, model.image);
    EXPECT_TRUE(written.ok()) << written;
    return path;
  }
  absl::StatusOr<v1::PutArtifactResult> PutVersion(const std::string& path, const std::string& base,
                                                   bool required = false, const std::string& key = "policy",
                                                   bool durable = false) {
    v1::ImportArtifactRequest request;
    request.set_path(path);
    request.set_durable(durable);
    if (!key.empty()) request.mutable_binding()->set_key(key);
    request.mutable_difference()->set_base(base);
    request.mutable_difference()->set_required(required);
    auto result = ingester->Import(context, request, /*asking=*/"", nullptr);
    if (result.ok() && !key.empty()) Bind(key, result->artifact_id(), ++revision_);
    return result;
  }
  void EvictAll(const std::string& artifact_id) { Evict(artifact_id, std::nullopt); }
  // Evicts the replicas at places of this kind, or at all places.
  void Evict(const std::string& artifact_id, std::optional<LocationKind> kind) {
    for (const ReplicaInfo& replica : engine->ListReplicas()) {
      if (replica.artifact_id == artifact_id &&
          replica.location.kind == kind.value_or(replica.location.kind)) {
        EXPECT_TRUE(engine->Evict(replica.id, /*force=*/true).ok());
      }
    }
  }
  // Puts a version, with its difference from the base, and keeps only the difference. Returns the version's
  // id.
  std::string PutAndKeepDifference(int version, const std::string& base) {
    const auto next = PutVersion(WriteVersion(version), base);
    EXPECT_TRUE(next.ok() && next->has_difference()) << next.status();
    const auto manifest = engine->FindManifest(next->artifact_id());
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    store.With([&](FakeGlobalStore& it) {
      it.manifests[next->artifact_id()] = (*manifest)->bytes();
      it.differences[next->artifact_id()] = {next->difference()};
    });
    EvictAll(next->artifact_id());
    return next->artifact_id();
  }
  // Puts two versions; keeps the first, and the difference to the second. Returns the versions' ids.
  std::pair<std::string, std::string> PutTwoAndKeepFirst() {
    const auto base = PutVersion(WriteVersion(0), "none");
    EXPECT_TRUE(base.ok()) << base.status();
    return {base->artifact_id(), PutAndKeepDifference(1, "auto")};
  }
  size_t CountHere(const std::string& artifact_id) const {
    return std::ranges::count(engine->ListReplicas(), artifact_id, &ReplicaInfo::artifact_id);
  }

 private:
  uint64_t revision_ = 0;
};

}  // namespace tensorcast::daemon
