#include "global_store/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace tensorcast::global_store {
namespace {

using enum LocationKind;

LaneEnd End(const std::string& host) {
  return {.host_id = host, .handle_socket = "/s", .lanes = {"ucx"}, .has_devices = true};
}

SourceQuery To(LocationKind destination) {
  SourceQuery query{.receiver = End("here"), .destination = destination, .required_lane = ""};
  query.receiver.lanes = {"ucx-rma", "ucx"};
  return query;
}

SourceCandidate From(const std::string& id, const std::string& host, LocationKind place = kCpu) {
  return {.replica_id = id, .end = End(host), .place = place};
}

struct Case {
  std::string name;
  SourceQuery query;
  std::vector<SourceCandidate> candidates;
  std::string expected;  // "replica lane", or "" for none
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

template <class T>
T With(T value, const std::function<void(T&)>& change) {
  change(value);
  return value;
}
SourceCandidate Changed(SourceCandidate candidate, const std::function<void(SourceCandidate&)>& change) {
  return With<SourceCandidate>(std::move(candidate), change);
}
SourceQuery Changed(SourceQuery query, const std::function<void(SourceQuery&)>& change) {
  return With<SourceQuery>(std::move(query), change);
}

std::string Describe(const SourceQuery& query, const std::vector<SourceCandidate>& candidates) {
  const auto choice = ChooseSource(query, candidates);
  return choice.has_value() ? candidates[choice->candidate].replica_id + " " + choice->lane : "";
}

class ChooseSourceTable : public ::testing::TestWithParam<Case> {};

TEST_P(ChooseSourceTable, ChoosesAsTheTableSays) {
  std::vector<SourceCandidate> candidates = GetParam().candidates;
  EXPECT_EQ(Describe(GetParam().query, candidates), GetParam().expected);
  std::reverse(candidates.begin(), candidates.end());
  EXPECT_EQ(Describe(GetParam().query, candidates), GetParam().expected) << "in another order";
}

const auto kDraining = [](SourceCandidate& source) { source.draining = true; };
const auto Busy = [](uint32_t grants) {
  return [grants](SourceCandidate& source) { source.active_grants = grants; };
};
const auto Lanes = [](std::vector<std::string> lanes) {
  return [lanes](SourceCandidate& source) { source.end.lanes = lanes; };
};
const auto Require = [](std::string lane) {
  return [lane](SourceQuery& query) { query.required_lane = lane; };
};

INSTANTIATE_TEST_SUITE_P(
    Table, ChooseSourceTable,
    ::testing::Values(
        Case{"Nobody", To(kCpu), {}, ""}, Case{"TheOnlyOne", To(kCpu), {From("r", "there")}, "r ucx"},
        Case{"SameHostFirst", To(kCpu), {From("a", "there"), From("b", "here")}, "b local"},
        Case{"SameHostEvenWhenBusier",
             To(kCpu),
             {From("a", "there"), Changed(From("b", "here"), Busy(3))},
             "b local"},
        Case{"AnUnknownHostIsNotTheSame",
             Changed(To(kCpu), [](SourceQuery& query) { query.receiver.host_id = ""; }),
             {From("a", "")},
             "a ucx"},
        Case{"NoLocalLaneWithoutTheSourcesHandleSocket",
             To(kCpu),
             {Changed(From("a", "here"), [](SourceCandidate& source) { source.end.handle_socket = ""; })},
             "a ucx"},
        Case{"NoLocalLaneWithoutTheReceiversHandleSocket",
             Changed(To(kCpu), [](SourceQuery& query) { query.receiver.handle_socket = ""; }),
             {From("a", "here")},
             "a ucx"},
        Case{"NoLocalGpuForAReceiverWithoutDevices",
             Changed(To(kCpu), [](SourceQuery& query) { query.receiver.has_devices = false; }),
             {From("a", "here", kGpu)},
             "a ucx"},
        Case{"MemoryElsewhereBeforeADiskHere",
             To(kCpu),
             {From("a", "here", kDisk), From("b", "there")},
             "b ucx"},
        Case{"ADiskHereBeforeADiskElsewhere",
             To(kCpu),
             {From("a", "there", kDisk), From("b", "here", kDisk)},
             "b local"},
        Case{"RemoteCpuBeforeRemoteGpuForTheCpu",
             To(kCpu),
             {From("a", "t1", kGpu), From("b", "t2", kCpu)},
             "b ucx"},
        Case{"RemoteCpuBeforeRemoteGpuForAGpuToo",
             To(kGpu),
             {From("a", "t1", kGpu), From("b", "t2", kCpu)},
             "b ucx"},
        Case{"LocalGpuBeforeLocalCpuForAGpu",
             To(kGpu),
             {From("a", "here", kCpu), From("b", "here", kGpu)},
             "b local"},
        Case{"LocalCpuBeforeLocalGpuForTheCpu",
             To(kCpu),
             {From("a", "here", kGpu), From("b", "here", kCpu)},
             "b local"},
        Case{"LocalCpuBeforeLocalGpuForTheDisk",
             To(kDisk),
             {From("a", "here", kGpu), From("b", "here", kCpu)},
             "b local"},
        Case{"TheReceiversFasterLane",
             To(kCpu),
             {From("a", "t1"), Changed(From("b", "t2"), Lanes({"ucx", "ucx-rma"}))},
             "b ucx-rma"},
        Case{"TheIdlerOfEquals",
             To(kCpu),
             {Changed(From("a", "t1"), Busy(2)), Changed(From("b", "t2"), Busy(1))},
             "b ucx"},
        Case{"TheSmallerIdOfEquals", To(kCpu), {From("b", "t1"), From("a", "t2")}, "a ucx"},
        Case{"ASlowerSourceOnceTheFastOneIsAtItsCap",
             To(kCpu),
             {Changed(From("a", "here"), Busy(4)), From("b", "there")},
             "b ucx"},
        Case{"AtTheCapNobodyIsTurnedAway", To(kCpu), {Changed(From("a", "there"), Busy(400))}, "a ucx"},
        Case{"AllAtTheirCapAsWithoutOne",
             To(kCpu),
             {Changed(From("a", "there"), Busy(5)), Changed(From("b", "here"), Busy(9))},
             "b local"},
        Case{"ADrainingNodeLast",
             To(kCpu),
             {Changed(From("a", "here"), kDraining), Changed(From("b", "there", kDisk), Busy(9))},
             "b ucx"},
        Case{"ADrainingNodeWhenItIsTheOnlyOne", To(kCpu), {Changed(From("a", "here"), kDraining)}, "a local"},
        Case{"TheRequiredLane",
             Changed(To(kCpu), Require("ucx")),
             {From("a", "here"), From("b", "there")},
             "a ucx"},
        Case{"TheRequiredLocalLane",
             Changed(To(kCpu), Require("local")),
             {From("a", "there"), From("b", "here")},
             "b local"},
        Case{"NobodyOnTheRequiredLane", Changed(To(kCpu), Require("nccl")), {From("a", "here")}, ""},
        Case{
            "NobodyLocalWhereLocalIsRequired", Changed(To(kCpu), Require("local")), {From("a", "there")}, ""},
        Case{"NoSharedLane", To(kCpu), {Changed(From("a", "there"), Lanes({"loopback"}))}, ""},
        Case{"ALaneThatCallsItselfLocalIsNone",
             Changed(To(kCpu), [](SourceQuery& query) { query.receiver.lanes = {"local"}; }),
             {Changed(From("a", "there"), Lanes({"local"}))},
             ""}),
    [](const auto& info) { return info.param.name; });

TEST(ChooseSource, DoesNotDependOnTheOrderOfCandidates) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<SourceCandidate> candidates;
    for (int i = 0; i < 8; ++i) {
      SourceCandidate source = From("r" + std::to_string(i), random() % 3 == 0 ? "here" : "there",
                                    static_cast<LocationKind>(random() % 3));
      source.draining = random() % 5 == 0;
      source.active_grants = static_cast<uint32_t>(random() % 6);
      if (random() % 3 == 0) source.end.lanes = {"ucx-rma"};
      candidates.push_back(source);
    }
    const std::string first = Describe(To(kGpu), candidates);
    std::shuffle(candidates.begin(), candidates.end(), random);
    EXPECT_EQ(Describe(To(kGpu), candidates), first);
  }
}

}  // namespace
}  // namespace tensorcast::global_store
