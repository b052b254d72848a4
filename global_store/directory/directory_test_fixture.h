// A directory with predictable secrets, a clock that tests set, and short forms of its calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"
#include "global_store/directory/listings.h"

namespace tensorcast::global_store {

class CountingSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return absl::StrCat("t", ++grants_); }
  std::string NewGrantKey() override { return absl::StrCat("key", ++keys_); }

 private:
  int grants_ = 0;
  int keys_ = 0;
};

inline NodeFacts SomeNode(const std::string& id, uint64_t incarnation = 1) {
  return {.node_id = id,
          .name = absl::StrCat("name-", id),
          .incarnation = incarnation,
          .host_id = absl::StrCat("host-", id),
          .grpc_address = absl::StrCat(id, ":7000"),
          .handle_socket = "/run/handles.sock",
          .lanes = {"ucx"},
          .devices = {}};
}

inline ReplicaInfo SomeReplica(const std::string& id, const std::string& artifact_id,
                               LocationKind kind = LocationKind::kCpu,
                               ReplicaState state = ReplicaState::kReady) {
  return {.id = id, .artifact_id = artifact_id, .location = {.kind = kind}, .state = state};
}

class DirectoryTest : public ::testing::Test {
 protected:
  explicit DirectoryTest(DirectoryOptions options = {}) : options_(std::move(options)) {}

  static NodeIdentity Id(const std::string& node_id, uint64_t incarnation = 1) {
    return {node_id, incarnation};
  }

  void Register(const std::string& node_id, uint64_t incarnation = 1) {
    Register(SomeNode(node_id, incarnation));
  }
  void Register(const NodeFacts& facts) {
    auto registration = directory_.RegisterNode(facts, {}, now_);
    ASSERT_TRUE(registration.ok()) << registration.status();
    sequence_[facts.node_id] = 0;
    ASSERT_TRUE(directory_.ReconcileInventory(Id(facts.node_id, facts.incarnation), 0, {}, now_).ok());
  }

  void Publish(const std::string& artifact_id) {
    directory_.Apply(
        {.artifacts = {{.artifact_id = artifact_id, .created = wall_now(), .updated = wall_now()}},
         .keys = {}},
        now_);
  }
  void Delete(const std::string& artifact_id) {
    auto facts = directory_.catalog().PrepareDeleteArtifact(artifact_id, wall_now());
    ASSERT_TRUE(facts.ok()) << facts.status();
    directory_.Apply(*facts, now_);
  }
  absl::StatusOr<KeyRecord> Bind(const std::string& key, const std::string& artifact_id,
                                 std::optional<uint64_t> expected = std::nullopt,
                                 std::optional<uint32_t> keep = std::nullopt) {
    auto plan = directory_.catalog().PrepareBindKey(
        {.key = key, .artifact_id = artifact_id, .expected = expected, .keep = keep}, wall_now());
    if (!plan.ok()) return plan.status();
    directory_.Apply(plan->facts, now_);
    return plan->key;
  }
  absl::Status Unbind(const std::string& key, std::optional<uint64_t> expected = std::nullopt) {
    auto plan = directory_.catalog().PrepareDeleteKey(key, expected, wall_now());
    if (plan.ok()) directory_.Apply(plan->facts, now_);
    return plan.status();
  }

  // The node's next update in sequence.
  void Update(const std::string& node_id, const std::vector<ReplicaInfo>& replicas) {
    auto wanted = directory_.UpdateReplicas(Id(node_id), ++sequence_[node_id], replicas, now_);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    ASSERT_FALSE(*wanted);
  }
  HeartbeatReply Beat(const std::string& node_id, const std::vector<std::string>& active = {}) {
    auto reply = directory_.Heartbeat(Id(node_id), {}, active, sequence_[node_id], now_);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(HeartbeatReply{});
  }
  GrantOffer Request(const std::string& receiver, const std::string& artifact_id,
                     const std::vector<std::string>& excluded = {},
                     const std::vector<std::string>& corrupt = {}) {
    auto offer = directory_.transfers().RequestGrant({.receiver = Id(receiver),
                                                      .artifact_id = artifact_id,
                                                      .destination = {.kind = LocationKind::kCpu},
                                                      .excluded_replicas = excluded,
                                                      .corrupt_replicas = corrupt},
                                                     now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    return offer.value_or(GrantOffer{});
  }
  // The id of the offered replica, or "" when none is offered.
  std::string Offered(const std::string& receiver, const std::string& artifact_id) {
    const GrantOffer offer = Request(receiver, artifact_id);
    if (offer.granted.empty()) return "";
    EXPECT_TRUE(directory_.transfers()
                    .CompleteGrant(Id(receiver), offer.granted.front().grant.grant_id, GrantEnd::kCancelled,
                                   /*source_corrupt=*/false, now_)
                    .ok());
    directory_.transfers().grants().TakeEnded();
    return offer.granted.front().grant.replica_id;
  }
  // Holders prove the replicas that they report, except `liars`.
  EvictionDecision Evict(const std::string& node_id, const std::string& replica_id,
                         const std::set<std::string>& liars = {}) {
    Proofs proofs;
    while (true) {
      auto decision = directory_.evictions().Request(Id(node_id), replica_id, now_, proofs);
      EXPECT_TRUE(decision.ok()) << decision.status();
      if (!decision.ok() || decision->to_prove.copies.empty()) return decision.value_or(EvictionDecision{});
      EXPECT_FALSE(decision->granted);
      for (const CopyToProve& copy : decision->to_prove.copies) {
        (liars.contains(copy.replica.node_id) ? proofs.unproven : proofs.proven).push_back(copy.replica);
      }
    }
  }

  // For durable facts; moves with now_.
  absl::Time wall_now() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }

  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  CountingSecrets secrets_;
  const DirectoryOptions options_;
  Directory directory_{options_, &secrets_};
  std::map<std::string, uint64_t> sequence_;
};

}  // namespace tensorcast::global_store
