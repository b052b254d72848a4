#include "cli/doctor/node_checks.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::doctor {
namespace {

using cli::FormatBytes;

constexpr absl::Duration kClockWarn = absl::Seconds(1);
constexpr absl::Duration kClockFail = absl::Minutes(1);  // from here on certificates and records disagree
constexpr absl::Duration kCertificateWarn = absl::Hours(30 * 24);
constexpr absl::Duration kCertificateFail = absl::Hours(7 * 24);
// A connection takes one, a pull several, and so does each replica that a client maps.
constexpr uint64_t kFewDescriptors = 4096;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kBytesPerMbit = 1'000'000 / 8;

const v1::GetStatusResponse& StatusOf(const NodeFacts& node) { return *node.status; }

// Every check below adds its findings under the node's name, so that the output groups them.
Check CheckOf(const NodeFacts& node, const char* name, FindingList& out) {
  return Check(NameOf(node.node), name, out);
}

std::string DaysText(absl::Duration time) {
  return time < absl::Hours(48) ? absl::StrFormat("%.1f hours", absl::ToDoubleHours(time))
                                : absl::StrFormat("%.0f days", absl::ToDoubleHours(time) / 24);
}

uint64_t HostPoolBytes(const v1::GetStatusResponse& status) {
  uint64_t bytes = 0;
  for (const v1::Pool& pool : status.pools()) {
    if (pool.location().kind() == v1::LOCATION_KIND_CPU) bytes += pool.capacity_bytes();
  }
  return bytes;
}

// "ucx and gpu:0"; empty: nothing registers memory.
std::string RegistrantsOf(const v1::GetStatusResponse& status) {
  std::string text;
  const auto add = [&text](std::string_view what) {
    absl::StrAppend(&text, text.empty() ? "" : " and ", what);
  };
  const auto& lanes = status.node().lanes();
  if (std::ranges::any_of(lanes, [](const std::string& lane) { return absl::StartsWith(lane, "ucx"); })) {
    add("the UCX lanes");
  }
  // Fake GPUs have no place on a bus.
  const auto& devices = status.devices();
  if (std::ranges::any_of(devices, [](const v1::DeviceStatus& gpu) { return !gpu.pci_bus_id().empty(); })) {
    add("the GPUs");
  }
  return text;
}

std::string MbitText(uint64_t mbit) {
  return mbit >= 1000 ? absl::StrFormat("%.4g Gbit/s", static_cast<double>(mbit) / 1000)
                      : absl::StrCat(mbit, " Mbit/s");
}

void CheckLimit(const Check& check, std::string_view key, uint64_t limit, uint64_t link_mbit) {
  if (limit <= link_mbit * kBytesPerMbit) return;
  check.Warn(absl::StrCat(key, " is ", FormatBytes(limit),
                          " a second, more than the rate of all links together, ", MbitText(link_mbit)),
             absl::StrCat("lower ", key, ", which limits nothing now, or find out why the links are slow"));
}

}  // namespace

void CheckStoreLink(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "global store", out);
  const v1::GetStatusResponse& status = StatusOf(node);
  if (status.global_store_reachable()) return check.Ok(absl::StrCat("reached at ", status.global_store()));
  check.Fail(absl::StrCat("this node does not reach the global store at ", status.global_store(), ": ",
                          status.global_store_error()),
             "start the global store, or correct daemon.global_store or the firewall");
}

void CheckClock(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "clock", out);
  // The node read its clock at an unknown moment of the call. `asked` is the middle of the call, so half of
  // the round trip is the largest error, and only what exceeds it is certain.
  const absl::Duration ahead = rpc::FromProto(StatusOf(node).host().clock()) - node.asked;
  const absl::Duration unknown = node.round_trip / 2;
  const absl::Duration off = absl::AbsDuration(ahead) - unknown;
  const std::string found =
      absl::StrFormat("this node's clock is %.3f s %s the clock of this host (+/- %.3f s)",
                      absl::ToDoubleSeconds(absl::AbsDuration(ahead)),
                      ahead < absl::ZeroDuration() ? "behind" : "ahead of", absl::ToDoubleSeconds(unknown));
  const std::string change = "synchronize the clocks of both hosts, for example with chrony";
  if (off > kClockFail) return check.Fail(found, change);
  if (off > kClockWarn) return check.Warn(found, change);
  if (unknown > kClockWarn) {
    return check.Warn(absl::StrCat("not checked: the answer took ", absl::FormatDuration(node.round_trip),
                                   ", too long to compare the clocks"),
                      "run this command again when the host or the network is less busy");
  }
  check.Ok(found);
}

void CheckCertificate(const NodeFacts& node, absl::Time now, FindingList& out) {
  const Check check = CheckOf(node, "certificate", out);
  const v1::Security& security = StatusOf(node).security();
  if (security.name().empty()) {
    if (!security.insecure()) return check.Ok("this node has no certificate, and no TCP port");
    return check.Warn(
        "this node has no certificate: its TCP ports are not encrypted (security.insecure)",
        "configure security.ca, security.certificate and security.key, unless the network is trusted");
  }
  const absl::Duration left = rpc::FromProto(security.certificate_ends()) - now;
  const std::string change =
      "issue a new certificate, for example with `tensorcast certs issue`; the daemon reads the new "
      "certificate without a restart";
  if (left <= absl::ZeroDuration()) {
    return check.Fail(
        absl::StrCat("the certificate of ", security.name(), " expired ", DaysText(-left), " ago"), change);
  }
  const std::string found =
      absl::StrCat("the certificate of ", security.name(), " expires in ", DaysText(left));
  if (left < kCertificateFail) return check.Fail(found, change);
  if (left < kCertificateWarn) return check.Warn(found, change);
  check.Ok(found);
}

void CheckDescriptors(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "descriptors", out);
  const v1::HostFacts& host = StatusOf(node).host();
  const uint64_t open = host.descriptors_open(), max = host.descriptors_max();
  if (max == 0) {
    return check.Warn("not checked: the kernel does not report the limit",
                      "look at /proc/PID/limits of the daemon on that host");
  }
  const std::string found = max == kNoLimit ? absl::StrCat(open, " descriptors are open, without a limit")
                                            : absl::StrCat(open, " of max ", max, " descriptors are open");
  const std::string change =
      "raise the limit of open files (`ulimit -n`, or LimitNOFILE= of the systemd unit)";
  // The limits are 95 % and 80 %. The division comes first, since `max` may be close to 2^64.
  if (max != kNoLimit && open >= max / 20 * 19) return check.Fail(found, change);
  if (max != kNoLimit && open >= max / 10 * 8) return check.Warn(found, change);
  if (max < kFewDescriptors) {
    return check.Warn(absl::StrCat(found, "; a busy daemon needs ", kFewDescriptors), change);
  }
  check.Ok(found);
}

void CheckLockedMemory(const NodeFacts& node, FindingList& out) {
  const v1::GetStatusResponse& status = StatusOf(node);
  const std::string registrants = RegistrantsOf(status);
  if (registrants.empty()) return;
  const Check check = CheckOf(node, "locked memory", out);
  const uint64_t max = status.host().locked_memory_max(), pool = HostPoolBytes(status);
  // The whole host pool is registered once, so the limit must reach its size.
  if (max >= pool) {
    return check.Ok(absl::StrCat("the process may lock ", max == kNoLimit ? "all memory" : FormatBytes(max)));
  }
  check.Warn(absl::StrCat("the process may lock ", FormatBytes(max), ", and ", registrants,
                          " register the host pool of ", FormatBytes(pool)),
             "raise the limit (`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the systemd unit)");
}

void CheckHugePages(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "huge pages", out);
  // The kernel keeps these pages for users of huge pages. For everything else the memory is lost.
  const uint64_t free = StatusOf(node).host().free_huge_page_bytes();
  if (free == 0) return check.Ok("no unused huge pages are set aside");
  check.Warn(
      absl::StrCat(FormatBytes(free), " of memory is set aside as huge pages that nothing uses"),
      free >= HostPoolBytes(StatusOf(node))
          ? "start the daemon again with daemon.huge_pages on, so that its host pool uses them, or lower "
            "vm.nr_hugepages"
          : "set vm.nr_hugepages to what daemon.host_pool needs, or to 0");
}

void CheckPoolMemory(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "memory", out);
  const v1::GetStatusResponse& status = StatusOf(node);
  const uint64_t memory = status.host().memory_bytes(), available = status.host().available_memory_bytes();
  const uint64_t pool = HostPoolBytes(status);
  const std::string found =
      absl::StrCat("the host pool has ", FormatBytes(pool), ", and ", FormatBytes(available),
                   " of the host's ", FormatBytes(memory), " of memory are available");
  // The pool's pages are taken at the start, so what is available is what others have left.
  if (available < memory / 20) {
    return check.Warn(found,
                      "make daemon.host_pool smaller, or stop other programs that use memory on that host");
  }
  if (pool > memory / 10 * 9) {
    return check.Warn(found, "make daemon.host_pool smaller: programs need memory, too");
  }
  check.Ok(found);
}

void CheckLinks(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "links", out);
  const v1::GetStatusResponse& status = StatusOf(node);
  uint64_t mbit = 0;
  std::string found;
  for (const v1::HostFacts::Link& link : status.host().links()) {
    mbit += link.mbit();
    absl::StrAppend(&found, found.empty() ? "" : ", ", link.interface(), " ", MbitText(link.mbit()));
  }
  if (mbit == 0) return check.Ok("no link reports its rate, as on many virtual machines");
  // A limit of 0 does not limit, and CheckLimit passes it. Where neither limit is above the links, the rates
  // are told.
  const size_t before = out.size();
  CheckLimit(check, "daemon.limits.send", status.limits().send(), mbit);
  CheckLimit(check, "daemon.limits.receive", status.limits().receive(), mbit);
  if (out.size() == before) check.Ok(found);
}

void CheckExporters(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "telemetry", out);
  for (const v1::HostFacts::Exporter& exporter : StatusOf(node).host().exporters()) {
    const std::string to = exporter.endpoint().empty() ? "the default collector" : exporter.endpoint();
    if (!exporter.error().empty()) {
      check.Warn(absl::StrCat("the last export of ", exporter.signal(), " to ", to, " failed: ",
                              exporter.error(), " (", exporter.dropped(), " records lost so far)"),
                 "start the collector, or correct observability.otel.endpoint, .exporter or .tls");
    } else if (exporter.dropped() > 0) {
      check.Warn(absl::StrCat(exporter.dropped(), " records of ", exporter.signal(), " to ", to,
                              " were lost since the daemon started"),
                 "look at the collector's load, or raise observability.otel.queue_size");
    } else {
      check.Ok(absl::StrCat(exporter.signal(), " are sent to ", to));
    }
  }
}

void CheckDamage(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "damage", out);
  const v1::GetStatusResponse& status = StatusOf(node);
  for (const v1::DamagedFile& file : status.damaged_files()) {
    check.Fail(absl::StrCat("the packed file ", file.path(), " is damaged: ", file.error().message()),
               "remove the file, or pack the artifact again; look at the disk's errors");
  }
  for (const v1::DamagedReplica& replica : status.damaged_replicas()) {
    // Replaced or not, the memory stays suspect until it was tested.
    const bool replaced = !replica.replaced_by().empty();
    check.Add(replaced ? Level::kWarn : Level::kFail,
              absl::StrCat("bytes of replica ", replica.replica_id(), " changed in ", replica.memory(), ", ",
                           replaced ? "and the replica was replaced" : "and the replica is not replaced yet"),
              "test that host's memory");
  }
  if (status.damaged_files().empty() && status.damaged_replicas().empty()) {
    check.Ok("no replica and no packed file is damaged");
  }
}

void CheckDevices(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "gpus", out);
  const v1::GetStatusResponse& status = StatusOf(node);
  int healthy = 0;
  for (const v1::DeviceStatus& device : status.devices()) {
    if (device.unhealthy().empty()) {
      ++healthy;
      continue;
    }
    check.Fail(absl::StrCat("gpu:", device.ordinal(), " gets no replicas: ", device.unhealthy()),
               "look at the GPU's errors (`nvidia-smi -q`, `dmesg`), then start the daemon again");
  }
  if (healthy > 0) check.Ok(absl::StrCat(healthy, healthy == 1 ? " GPU works" : " GPUs work"));
}

void CheckConservation(const NodeFacts& node, FindingList& out) {
  const Check check = CheckOf(node, "conservation", out);
  const v1::Conservation& conservation = StatusOf(node).conservation();
  if (conservation.violations() == 0) {
    return check.Ok(absl::StrCat(conservation.pulls_compared(), " pulls were compared at both ends"));
  }
  check.Warn(absl::StrCat("in ", conservation.violations(), " of ", conservation.pulls_compared(),
                          " pulls, the two ends counted different numbers of bytes; last: ",
                          conservation.last_violation()),
             "report this defect with the archive of `tensorcast debug bundle`");
}

// The checks up to the host's facts need the node's status alone. A daemon that reports no facts of its host
// gets one warning instead of a finding of each check below.
void CheckNode(const NodeFacts& node, absl::Time now, FindingList& out) {
  CheckStoreLink(node, out);
  CheckCertificate(node, now, out);
  CheckDamage(node, out);
  CheckDevices(node, out);
  CheckConservation(node, out);
  if (!StatusOf(node).has_host()) {
    return CheckOf(node, "host", out)
        .Warn("not checked: the node's daemon reports no facts of its host", "upgrade the daemon");
  }
  CheckClock(node, out);
  CheckDescriptors(node, out);
  CheckLockedMemory(node, out);
  CheckHugePages(node, out);
  CheckPoolMemory(node, out);
  CheckLinks(node, out);
  CheckExporters(node, out);
}

}  // namespace tensorcast::doctor
