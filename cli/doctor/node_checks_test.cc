#include "cli/doctor/node_checks.h"

#include <functional>
#include <limits>

#include "cli/doctor/test_facts.h"

namespace tensorcast::doctor::node_checks_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

// What a check says of a node that is well but for this.
FindingList Of(void (*check)(const NodeFacts&, FindingList&),
               const std::function<void(NodeFacts&, v1::GetStatusResponse&)>& change = nullptr) {
  NodeFacts node = WellNode("n");
  if (change) change(node, *node.status);
  FindingList out;
  check(node, out);
  return out;
}

FindingList CertificateEndingIn(absl::Duration left) {
  NodeFacts node = WellNode("n");
  node.status->mutable_security()->set_name("spiffe://x/node/n");
  *node.status->mutable_security()->mutable_certificate_ends() = rpc::ToProto(TestNow() + left);
  FindingList out;
  CheckCertificate(node, TestNow(), out);
  return out;
}

TEST(NodeChecks, NodeThatIsWell_HasOnlyOkFindings) {
  FindingList out;
  CheckNode(WellNode("n"), TestNow(), out);
  EXPECT_GE(out.size(), 8u);
  EXPECT_THAT(out, Each(Field(&Finding::level, Level::kOk)));
  EXPECT_THAT(out, Each(Field(&Finding::subject, "n")));
}

TEST(NodeChecks, DaemonWithoutHostFacts_IsNotChecked) {
  NodeFacts node = WellNode("n");
  node.status->clear_host();
  FindingList out;
  CheckNode(node, TestNow(), out);
  EXPECT_THAT(out, ::testing::Contains(Finds(Level::kWarn, "n", "not checked")));
  EXPECT_THAT(out, ::testing::Not(::testing::Contains(Field(&Finding::check, "clock"))));
}

TEST(NodeChecks, StoreAway_Fails) {
  EXPECT_THAT(Of(CheckStoreLink,
                 [](NodeFacts&, v1::GetStatusResponse& status) {
                   status.set_global_store_reachable(false);
                   status.set_global_store_error("no answer");
                 }),
              ElementsAre(Finds(Level::kFail, "n", "10.0.0.9:7000: no answer")));
}

TEST(NodeChecks, Clock_IsComparedLessTheRoundTrip) {
  const auto off = [](absl::Duration ahead, absl::Duration round_trip) {
    return Of(CheckClock, [=](NodeFacts& node, v1::GetStatusResponse& status) {
      *status.mutable_host()->mutable_clock() = rpc::ToProto(TestNow() + ahead);
      node.round_trip = round_trip;
    });
  };
  EXPECT_THAT(off(absl::Milliseconds(900), absl::ZeroDuration()),
              ElementsAre(Finds(Level::kOk, "n", "ahead")));
  EXPECT_THAT(off(absl::Milliseconds(-1500), absl::Milliseconds(10)),
              ElementsAre(Finds(Level::kWarn, "n", "1.500 s behind")));
  EXPECT_THAT(off(absl::Milliseconds(1500), absl::Seconds(1.5)),
              ElementsAre(Finds(Level::kOk, "n", "0.750")));
  EXPECT_THAT(off(absl::Minutes(2), absl::ZeroDuration()), ElementsAre(Finds(Level::kFail, "n", "chrony")));
  EXPECT_THAT(off(absl::ZeroDuration(), absl::Seconds(4)),
              ElementsAre(Finds(Level::kWarn, "n", "not checked")));
}

TEST(NodeChecks, Certificate_WarnsBelow30DaysAndFailsBelow7) {
  EXPECT_THAT(CertificateEndingIn(absl::Hours(31 * 24)), ElementsAre(Finds(Level::kOk, "n", "31 days")));
  EXPECT_THAT(CertificateEndingIn(absl::Hours(29 * 24)), ElementsAre(Finds(Level::kWarn, "n", "29 days")));
  EXPECT_THAT(CertificateEndingIn(absl::Hours(6 * 24)), ElementsAre(Finds(Level::kFail, "n", "6 days")));
  EXPECT_THAT(CertificateEndingIn(-absl::Hours(1)),
              ElementsAre(Finds(Level::kFail, "n", "expired 1.0 hours ago")));
}

TEST(NodeChecks, PortsInClear_Warn) {
  NodeFacts node = WellNode("n");
  node.status->mutable_security()->set_insecure(true);
  FindingList out;
  CheckCertificate(node, TestNow(), out);
  EXPECT_THAT(out, ElementsAre(Finds(Level::kWarn, "n", "not encrypted")));
}

TEST(NodeChecks, Descriptors_AreComparedWithTheirLimit) {
  const auto with = [](uint64_t open, uint64_t max) {
    return Of(CheckDescriptors, [=](NodeFacts&, v1::GetStatusResponse& status) {
      status.mutable_host()->set_descriptors_open(open);
      status.mutable_host()->set_descriptors_max(max);
    });
  };
  EXPECT_THAT(with(100, 65536), ElementsAre(Finds(Level::kOk, "n", "100 of max 65536")));
  EXPECT_THAT(with(100, 1024), ElementsAre(Finds(Level::kWarn, "n", "LimitNOFILE")));
  EXPECT_THAT(with(54'000, 65536), ElementsAre(Finds(Level::kWarn, "n", "54000")));
  EXPECT_THAT(with(65'000, 65536), ElementsAre(Finds(Level::kFail, "n", "65000")));
  EXPECT_THAT(with(100, std::numeric_limits<uint64_t>::max()),
              ElementsAre(Finds(Level::kOk, "n", "without")));
}

TEST(NodeChecks, LockedMemory_MattersWhereMemoryIsRegistered) {
  const auto ucx = [](NodeFacts&, v1::GetStatusResponse& status) {
    status.mutable_node()->add_lanes("ucx-rma");
  };
  EXPECT_THAT(Of(CheckLockedMemory), IsEmpty());
  EXPECT_THAT(Of(CheckLockedMemory, ucx), ElementsAre(Finds(Level::kWarn, "n", "the UCX lanes register")));
  EXPECT_THAT(Of(CheckLockedMemory,
                 [&](NodeFacts& node, v1::GetStatusResponse& status) {
                   ucx(node, status);
                   status.mutable_host()->set_locked_memory_max(std::numeric_limits<uint64_t>::max());
                 }),
              ElementsAre(Finds(Level::kOk, "n", "all memory")));
  // Fake GPUs are in host memory.
  EXPECT_THAT(Of(CheckLockedMemory, [](NodeFacts&, v1::GetStatusResponse& status) { status.add_devices(); }),
              IsEmpty());
  EXPECT_THAT(Of(CheckLockedMemory,
                 [](NodeFacts&, v1::GetStatusResponse& status) {
                   status.add_devices()->set_pci_bus_id("0000:3b:00.0");
                 }),
              ElementsAre(Finds(Level::kWarn, "n", "the GPUs register")));
}

TEST(NodeChecks, HugePagesThatNothingUses_Warn) {
  const auto free = [](uint64_t bytes) {
    return Of(CheckHugePages, [=](NodeFacts&, v1::GetStatusResponse& status) {
      status.mutable_host()->set_free_huge_page_bytes(bytes);
    });
  };
  EXPECT_THAT(free(0), ElementsAre(Finds(Level::kOk, "n", "no unused huge pages")));
  EXPECT_THAT(free(2 * kGiB), ElementsAre(Finds(Level::kWarn, "n", "what daemon.host_pool needs")));
  EXPECT_THAT(free(16 * kGiB), ElementsAre(Finds(Level::kWarn, "n", "start the daemon again")));
}

TEST(NodeChecks, PoolMemory_WarnsWhereOthersHaveTooLittle) {
  const auto with = [](uint64_t memory, uint64_t available) {
    return Of(CheckPoolMemory, [=](NodeFacts&, v1::GetStatusResponse& status) {
      status.mutable_host()->set_memory_bytes(memory);
      status.mutable_host()->set_available_memory_bytes(available);
    });
  };
  EXPECT_THAT(with(64 * kGiB, 40 * kGiB),
              ElementsAre(Finds(Level::kOk, "n",
                                "the host pool has 16.00 GiB, and 40.00 GiB of the host's 64.00 GiB")));
  EXPECT_THAT(with(64 * kGiB, 2 * kGiB), ElementsAre(Finds(Level::kWarn, "n", "stop other programs")));
  EXPECT_THAT(with(17 * kGiB, kGiB), ElementsAre(Finds(Level::kWarn, "n", "daemon.host_pool smaller")));
}

TEST(NodeChecks, LimitAboveLinkRate_Warns) {
  const auto with = [](uint64_t send, uint64_t mbit) {
    return Of(CheckLinks, [=](NodeFacts&, v1::GetStatusResponse& status) {
      status.mutable_limits()->set_send(send);
      if (mbit == 0) return;
      v1::HostFacts::Link* link = status.mutable_host()->add_links();
      link->set_interface("eth0");
      link->set_mbit(mbit);
    });
  };
  EXPECT_THAT(with(125'000'000, 1000), ElementsAre(Finds(Level::kOk, "n", "eth0 1 Gbit/s")));
  EXPECT_THAT(with(126'000'000, 1000), ElementsAre(Finds(Level::kWarn, "n", "daemon.limits.send")));
  EXPECT_THAT(with(126'000'000, 0), ElementsAre(Finds(Level::kOk, "n", "no link reports")));
}

TEST(NodeChecks, ExporterWithErrorOrDrops_Warns) {
  const auto with = [](const std::string& error, uint64_t dropped) {
    return Of(CheckExporters, [=](NodeFacts&, v1::GetStatusResponse& status) {
      v1::HostFacts::Exporter* exporter = status.mutable_host()->add_exporters();
      exporter->set_signal("traces");
      exporter->set_error(error);
      exporter->set_dropped(dropped);
    });
  };
  EXPECT_THAT(Of(CheckExporters), IsEmpty());
  EXPECT_THAT(with("", 0), ElementsAre(Finds(Level::kOk, "n", "traces are sent to the default collector")));
  EXPECT_THAT(with("refused", 3), ElementsAre(Finds(Level::kWarn, "n", "failed: refused (3 records")));
  EXPECT_THAT(with("", 3), ElementsAre(Finds(Level::kWarn, "n", "queue_size")));
}

TEST(NodeChecks, DamageIsNamed_AndFailsUnlessReplaced) {
  EXPECT_THAT(Of(CheckDamage), ElementsAre(Finds(Level::kOk, "n", "no replica")));
  EXPECT_THAT(Of(CheckDamage,
                 [](NodeFacts&, v1::GetStatusResponse& status) {
                   status.add_damaged_files()->set_path("/x/pack");
                   status.add_damaged_replicas()->set_replica_id("r1");
                   v1::DamagedReplica* replaced = status.add_damaged_replicas();
                   replaced->set_replica_id("r2");
                   replaced->set_replaced_by("r3");
                 }),
              ElementsAre(Finds(Level::kFail, "n", "/x/pack"), Finds(Level::kFail, "n", "r1"),
                          Finds(Level::kWarn, "n", "r2")));
}

TEST(NodeChecks, UnhealthyDevice_Fails) {
  EXPECT_THAT(Of(CheckDevices), IsEmpty());
  EXPECT_THAT(Of(CheckDevices,
                 [](NodeFacts&, v1::GetStatusResponse& status) {
                   status.add_devices();
                   v1::DeviceStatus* broken = status.add_devices();
                   broken->set_ordinal(1);
                   broken->set_unhealthy("Xid 79");
                 }),
              ElementsAre(Finds(Level::kFail, "n", "gpu:1 gets no replicas: Xid 79"),
                          Finds(Level::kOk, "n", "1 GPU works")));
}

TEST(NodeChecks, ConservationViolation_Warns) {
  EXPECT_THAT(Of(CheckConservation,
                 [](NodeFacts&, v1::GetStatusResponse& status) {
                   status.mutable_conservation()->set_pulls_compared(9);
                   status.mutable_conservation()->set_violations(1);
                   status.mutable_conservation()->set_last_violation("grant g");
                 }),
              ElementsAre(Finds(Level::kWarn, "n", "1 of 9 pulls")));
}

}  // namespace
}  // namespace tensorcast::doctor::node_checks_test
