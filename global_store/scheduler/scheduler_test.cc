#include "global_store/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcast::global_store::scheduler_test {
namespace {

using enum LocationKind;

LaneEnd End(const std::string& host) {
  return {.host_id = host, .handle_socket = "/s", .lanes = {"ucx"}, .has_devices = true};
}

// With what the scheduler only borrows.
struct Query : SourceQuery {
  LaneEnd receiver;
};
struct Source : SourceCandidate {
  std::string id;
  LaneEnd end;
};

Query To(LocationKind kind) {
  Query query;
  query.receiver = End("here");
  query.receiver.lanes = {"ucx-rma", "ucx"};
  query.destination = kind;
  query.upload_slots = 4;
  return query;
}

Source From(const std::string& id, const std::string& host, LocationKind place = kCpu) {
  Source source;
  source.id = id;
  source.end = End(host);
  source.place = place;
  return source;
}

struct Case {
  std::string name;
  Query query;
  std::vector<Source> candidates;
  std::string expected;  // "replica lane", ", " between several, or "" for none
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

template <class T>
T With(T value, const std::function<void(T&)>& change) {
  change(value);
  return value;
}
Source Changed(Source source, const std::function<void(Source&)>& change) {
  return With<Source>(std::move(source), change);
}
Query Changed(Query query, const std::function<void(Query&)>& change) {
  return With<Query>(std::move(query), change);
}

std::vector<Source> Choose(const Query& query, const std::vector<Source>& sources) {
  SourceQuery asked = query;
  asked.SourceQuery::receiver = &query.receiver;
  std::vector<SourceCandidate> candidates;
  for (const Source& source : sources) {
    candidates.push_back(source);
    candidates.back().replica_id = source.id;
    candidates.back().end = &source.end;
  }
  std::vector<Source> chosen;
  for (const SourceChoice& choice : ChooseSources(asked, candidates)) {
    chosen.push_back(sources[choice.candidate]);
    chosen.back().id += " " + choice.lane;
  }
  return chosen;
}

std::string Describe(const Query& query, const std::vector<Source>& sources) {
  std::string text;
  for (const Source& source : Choose(query, sources)) text += (text.empty() ? "" : ", ") + source.id;
  return text;
}

class ChooseSourceTable : public ::testing::TestWithParam<Case> {};

TEST_P(ChooseSourceTable, ChooseSource_FollowsTheTableOfExamples) {
  std::vector<Source> candidates = GetParam().candidates;
  EXPECT_EQ(Describe(GetParam().query, candidates), GetParam().expected);
  std::reverse(candidates.begin(), candidates.end());
  EXPECT_EQ(Describe(GetParam().query, candidates), GetParam().expected) << "in another order";
}

const auto kDraining = [](Source& source) { source.draining = true; };
const auto Busy = [](uint32_t grants) {
  return [grants](Source& source) { source.uploads = source.active_grants = grants; };
};
const auto BusyWithOthers = [](uint32_t grants) {
  return [grants](Source& source) { source.active_grants = grants; };
};
const auto Lanes = [](std::vector<std::string> lanes) {
  return [lanes](Source& source) { source.end.lanes = lanes; };
};
const auto Require = [](std::string_view lane) {
  return [lane](Query& query) { query.required_lane = lane; };
};
const auto kFilling = [](Source& source) { source.filling = true; };
const auto kPartial = [](Source& source) {
  source.filling = source.partial = true;
  source.rooted = false;
};
// Wants so many over the lane ucx, which fillings serve too.
const std::vector<std::string> kFillingLanes = {"ucx"};
const auto Wants = [](uint32_t wanted) {
  return [wanted](Query& query) {
    query.wanted = query.wanted_slow = wanted;
    query.filling_lanes = kFillingLanes;
  };
};
Source Placed(Source source, const std::string& zone, const std::string& rack) {
  source.end.zone = zone;
  source.end.rack = rack;
  return source;
}
Query Placed(Query query, const std::string& zone, const std::string& rack) {
  query.receiver.zone = zone;
  query.receiver.rack = rack;
  return query;
}

Query InRole(Query query, ZoneRole role) {
  query.zone_role = role;
  return query;
}

Source Linked(Source source, uint64_t mbit) {
  source.end.link_mbit = mbit;
  return source;
}
Query Linked(Query query, uint64_t mbit) {
  query.receiver.link_mbit = mbit;
  return query;
}

INSTANTIATE_TEST_SUITE_P(
    Table, ChooseSourceTable,
    ::testing::Values(
        Case{"NoSource", To(kCpu), {}, ""}, Case{"TheOnlyOne", To(kCpu), {From("r", "there")}, "r ucx"},
        Case{"SameHostFirst", To(kCpu), {From("a", "there"), From("b", "here")}, "b local"},
        Case{"SameHostEvenWhenBusier",
             To(kCpu),
             {From("a", "there"), Changed(From("b", "here"), Busy(3))},
             "b local"},
        Case{"AnUnknownHostIsNotTheSame",
             Changed(To(kCpu), [](Query& query) { query.receiver.host_id = ""; }),
             {From("a", "")},
             "a ucx"},
        Case{"NoLocalLaneWithoutTheSourcesHandleSocket",
             To(kCpu),
             {Changed(From("a", "here"), [](Source& source) { source.end.handle_socket = ""; })},
             "a ucx"},
        Case{"NoLocalLaneWithoutTheReceiversHandleSocket",
             Changed(To(kCpu), [](Query& query) { query.receiver.handle_socket = ""; }),
             {From("a", "here")},
             "a ucx"},
        Case{"NoLocalGpuForAReceiverWithoutDevices",
             Changed(To(kCpu), [](Query& query) { query.receiver.has_devices = false; }),
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
        Case{"WhatANodeServesOfOtherArtifactsIsBelowNoCap",
             To(kCpu),
             {Changed(From("a", "here"), BusyWithOthers(400)), From("b", "there")},
             "a local"},
        Case{"ButOfEqualsTheIdlerNodeIsTaken",
             To(kCpu),
             {Changed(From("a", "t1"), BusyWithOthers(400)), Changed(From("b", "t2"), Busy(1))},
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
             Changed(To(kCpu), [](Query& query) { query.receiver.lanes = {"local"}; }),
             {Changed(From("a", "there"), Lanes({"local"}))},
             ""},
        Case{"SeveralTheBestFirst",
             Changed(To(kCpu), Wants(2)),
             {Changed(From("a", "t1"), Busy(2)), Changed(From("b", "t2"), Busy(1)), From("c", "t3")},
             "c ucx, b ucx"},
        Case{"FewerThanWantedWhereTheOthersAreAtTheirCap",
             Changed(To(kCpu), Wants(3)),
             {Changed(From("a", "t1"), Busy(4)), Changed(From("b", "t2"), Busy(1)),
              Changed(From("c", "t3"), Busy(4))},
             "b ucx"},
        Case{"OneAtItsCapForAReceiverWithoutAny",
             Changed(To(kCpu), Wants(3)),
             {Changed(From("a", "t1"), Busy(4)), Changed(From("b", "t2"), Busy(5))},
             "a ucx"},
        Case{"NoneAtItsCapForAReceiverThatHasOne",
             Changed(Changed(To(kCpu), Wants(3)), [](Query& query) { query.has_source = true; }),
             {Changed(From("a", "t1"), Busy(4))},
             ""},
        Case{"NoOtherHostWhereOneHereHasIt",
             Changed(To(kCpu), Wants(3)),
             {From("a", "there"), Changed(From("b", "here"), kFilling)},
             "b ucx"},
        Case{"OthersOnceAReceiverHasOneHereAreOfHereToo",
             Changed(Changed(To(kCpu), Wants(3)),
                     [](Query& query) { query.has_source = query.has_source_on_host = true; }),
             {From("a", "there"), From("b", "here")},
             "b local"},
        Case{"OneThatFillsServesOverSomeLanesOnly",
             Changed(Changed(To(kCpu), Wants(3)), [](Query& query) { query.receiver.handle_socket = "/s"; }),
             {Changed(From("a", "here"), kFilling),
              Changed(Changed(From("b", "t1"), kFilling), Lanes({"ucx-rma"}))},
             "a ucx"},
        Case{"OneThatFillsNowhereUnlessALaneIsNamed", To(kCpu), {Changed(From("a", "there"), kFilling)}, ""},
        Case{"ReadyBeforeFilling",
             Changed(To(kCpu), Wants(2)),
             {Changed(From("a", "t1"), kFilling), Changed(From("b", "t2"), Busy(3))},
             "b ucx, a ucx"},
        Case{"AnyOfThoseThatFillAtFirst",
             Changed(To(kCpu), Wants(1)),
             {Changed(Changed(From("a", "t1"), kFilling), Busy(3)), Changed(From("b", "t2"), kFilling)},
             "a ucx"},
        Case{"TheIdlerOfThoseThatFillForAReceiverThatHasOne",
             Changed(Changed(To(kCpu), Wants(1)), [](Query& query) { query.has_source = true; }),
             {Changed(Changed(From("a", "t1"), kFilling), Busy(3)), Changed(From("b", "t2"), kFilling)},
             "b ucx"},
        Case{"OneThatLeadsNowhereIsTheLast",
             Changed(To(kCpu), Wants(2)),
             {Changed(Changed(From("a", "t1"), kFilling), [](Source& source) { source.rooted = false; }),
              Changed(From("b", "t2"), Busy(9))},
             "b ucx"},
        Case{"APartialOneBesideOneThatLeadsToTheRest",
             Changed(To(kCpu), Wants(3)),
             {Changed(From("a", "t1"), kPartial), Changed(From("b", "t2"), Busy(3)),
              Changed(From("c", "t3"), kPartial)},
             "b ucx, a ucx, c ucx"},
        Case{"APartialOneForAReceiverThatHasOneThatLeadsToTheRest",
             Changed(Changed(To(kCpu), Wants(1)), [](Query& query) { query.has_source = true; }),
             {Changed(From("a", "t1"), kPartial)},
             "a ucx"},
        Case{"ADrainingOneThatLeadsToTheRestBeforeAPartialOne",
             Changed(To(kCpu), Wants(2)),
             {Changed(From("a", "t1"), kPartial), Changed(From("b", "t2"), kDraining)},
             "b ucx, a ucx"},
        Case{"APartialOneAlone",
             Changed(To(kCpu), Wants(3)),
             {Changed(From("a", "t1"), kPartial), Changed(From("b", "t2"), kPartial)},
             "a ucx"},
        Case{"APartialOneHereBesideOneElsewhere",
             Changed(To(kCpu), Wants(3)),
             {Changed(From("a", "here"), kPartial), From("b", "there"), From("c", "t2")},
             "b ucx, c ucx, a ucx"},
        Case{"ItsRackThenItsZoneThenElsewhere",
             Placed(Changed(To(kCpu), Wants(3)), "z", "r"),
             {Placed(From("a", "t1"), "y", "r"), Placed(From("b", "t2"), "z", "q"),
              Placed(From("c", "t3"), "z", "r")},
             "c ucx, b ucx, a ucx"},
        Case{"NoneAcrossWhereItsZoneBringsTheBytes",
             InRole(Placed(Changed(To(kCpu), Wants(3)), "z", ""), ZoneRole::kServed),
             {Placed(From("a", "t1"), "y", ""), Placed(Changed(From("b", "t2"), Busy(9)), "z", "")},
             "b ucx"},
        Case{"AcrossWhereItsZoneHasNothing",
             InRole(Placed(Changed(To(kCpu), Wants(3)), "z", ""), ZoneRole::kServed),
             {Placed(From("a", "t1"), "y", "")},
             "a ucx"},
        Case{"AcrossFirstForThePuller",
             InRole(Placed(Changed(To(kCpu), Wants(3)), "z", ""), ZoneRole::kPuller),
             {Placed(From("a", "t1"), "y", ""), Placed(Changed(From("b", "t2"), kFilling), "z", "")},
             "a ucx, b ucx"},
        Case{"SlowLinksLast",
             Linked(Changed(To(kCpu), Wants(4)), 10'000),
             {Linked(From("a", "t1"), 1'000), Linked(From("b", "t2"), 10'000), Linked(From("c", "t3"), 5'000),
              Linked(From("d", "t4"), 1'000)},
             "b ucx, c ucx, a ucx, d ucx"},
        Case{"ASlowLinkBesideABusyFastOne",
             Linked(Changed(To(kCpu), Wants(2)), 10'000),
             {Linked(From("a", "t1"), 1'000), Linked(Changed(From("b", "t2"), Busy(4)), 10'000),
              Linked(From("c", "t3"), 10'000)},
             "c ucx, a ucx"},
        Case{
            "NoMoreSlowLinksThanWanted",
            Changed(Linked(Changed(To(kCpu), Wants(3)), 10'000), [](Query& query) { query.wanted_slow = 1; }),
            {Linked(From("a", "t1"), 1'000), Linked(From("b", "t2"), 1'000), Linked(From("c", "t3"), 10'000)},
            "c ucx, a ucx"},
        Case{"FasterLinksAfterLinksLikeItsOwn",
             Linked(Changed(To(kCpu), Wants(3)), 4'000),
             {Linked(From("a", "t1"), 10'000), Linked(Changed(From("b", "t2"), kFilling), 10'000),
              Linked(Changed(From("c", "t3"), kFilling), 4'000)},
             "c ucx, b ucx"},
        Case{"FasterWholeReplicasWhereNoneFills",
             Linked(Changed(To(kCpu), Wants(2)), 4'000),
             {Linked(From("a", "t1"), 10'000), Linked(From("b", "t2"), 10'000)},
             "a ucx, b ucx"},
        Case{"AReceiverThatDoesNotKnowItsOwnLinkKnowsNoSlowOne",
             Changed(To(kCpu), Wants(4)),
             {Linked(From("a", "t1"), 10), Linked(From("b", "t2"), 1'000)},
             "a ucx, b ucx"},
        Case{"ABusyFastLinkBeforeASlowOne",
             Linked(To(kCpu), 10'000),
             {Linked(From("a", "t1"), 1'000), Linked(Changed(From("b", "t2"), Busy(4)), 10'000)},
             "b ucx"},
        Case{"WithinAHostNoLinkIsSlow",
             Linked(To(kCpu), 10'000),
             {Linked(From("a", "here"), 1'000), Linked(From("b", "t2"), 10'000)},
             "a local"}),
    [](const auto& info) { return info.param.name; });

TEST(ChooseSource, ChooseSource_IgnoresOrderOfCandidates) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<Source> candidates;
    for (int i = 0; i < 8; ++i) {
      Source source = From("r" + std::to_string(i), random() % 3 == 0 ? "here" : "there",
                           static_cast<LocationKind>(random() % 3));
      source.draining = random() % 5 == 0;
      source.uploads = static_cast<uint32_t>(random() % 6);
      source.active_grants = source.uploads + static_cast<uint32_t>(random() % 3);
      source.filling = random() % 3 == 0;
      source.rooted = random() % 5 != 0;
      if (random() % 3 == 0) source.end.lanes = {"ucx-rma"};
      candidates.push_back(source);
    }
    const std::string first = Describe(Changed(To(kGpu), Wants(4)), candidates);
    std::shuffle(candidates.begin(), candidates.end(), random);
    EXPECT_EQ(Describe(Changed(To(kGpu), Wants(4)), candidates), first);
  }
}

}  // namespace
}  // namespace tensorcast::global_store::scheduler_test
