#include "transport/ucx/ucx_lanes.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/status.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

constexpr std::string_view kListenKey = "daemon.ucx_listen";
constexpr uint32_t kLanes = 2;
constexpr uint32_t kDataPorts = 8;
constexpr uint32_t kMaxPort = 65535;

absl::StatusOr<std::unique_ptr<Transport>> Open(UcxLane lane, const LaneConfig& config) {
  UcxOptions options{.lane = lane,
                     .listen = "",
                     .advertise_host = config.advertise_host,
                     .over_tcp = config.ucx_over_tcp,
                     .devices = config.devices};
  const bool rma = lane == UcxLane::kRma;
  if (!config.ucx_listen.empty()) {
    TC_ASSIGN_OR_RETURN(UcxPorts ports, UcxPortsOf(config));
    options.listen = rma ? std::move(ports.rma_listen) : std::move(ports.messages_listen);
    options.data_ports = ports.data;
  }
  LOG_IF(WARNING, config.ucx_over_tcp)
      << "the lane " << UcxLaneName(lane)
      << " goes over TCP (daemon.ucx_over_tcp), which is for tests: every process that "
         "reaches its ports can write to this process's memory";
  return UcxTransport::Create(options);
}

// At most one sentence about whether UCX may be opened at all; what cannot be helped goes before what can.
std::vector<LaneProblem> Check(const LaneConfig& config) {
  std::vector<LaneProblem> problems;
  const absl::Status device = config.ucx_over_tcp ? absl::OkStatus() : RequireRdmaDevice();
  if (!device.ok()) {
    problems.push_back(
        {kListenKey,
         absl::StrCat("\"", config.ucx_listen, "\": UCX is opened over RDMA only, and ", device.message(),
                      "; leave it out: between other hosts daemon.tcp_listen is what is needed")});
  } else if (!config.trusted_fabric) {
    problems.push_back(
        {kListenKey,
         absl::StrCat("\"", config.ucx_listen,
                      "\": UCX checks no certificates, so every process that reaches its ports reaches this "
                      "daemon's memory; leave it out or, on a fabric that you trust, set "
                      "security.trusted_fabric: true")});
  }
  if (const absl::Status ports = UcxPortsOf(config).status(); !ports.ok()) {
    problems.push_back({"daemon.ucx_data_ports", std::string(ports.message())});
  }
  return problems;
}

Lane DescribeLane(UcxLane lane) {
  return {.name = UcxLaneName(lane),
          .listen_key = kListenKey,
          .listen = &LaneConfig::ucx_listen,
          .check = Check,
          .make = [lane](const LaneConfig& config) { return Open(lane, config); }};
}

}  // namespace

Lane UcxMessagesLane() {
  Lane lane = DescribeLane(UcxLane::kMessages);
  lane.help = "messages over RDMA networks, by UCX";
  return lane;
}

Lane UcxRmaLane() {
  Lane lane = DescribeLane(UcxLane::kRma);
  lane.help = "one-sided reads of the source's memory over RDMA networks, by UCX";
  lane.opens_pool = true;
  return lane;
}

absl::StatusOr<UcxPorts> UcxPortsOf(const LaneConfig& config) {
  TC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.ucx_listen));
  const uint32_t first = listen.port;
  if (first == kMaxPort) {
    return absl::InvalidArgumentError(absl::StrCat("daemon.ucx_listen \"", config.ucx_listen,
                                                   "\" leaves no next port for the lane ucx-rma"));
  }
  const auto address = [&](uint32_t offset) {
    return FormatHostPort({listen.host, static_cast<uint16_t>(first == 0 ? 0 : first + offset)});
  };
  Ports data = config.ucx_data_ports;
  if (data.first != 0) {
    if (first != 0 && data.first < first + kLanes && data.last >= first) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", data.first, "-", data.last, "\" has the ports ", first, " and ", first + 1,
                       " in it, on which daemon.ucx_listen has the lanes ucx and ucx-rma; choose others"));
    }
  } else if (first != 0) {
    if (first + kLanes + kDataPorts - 1 > kMaxPort) {
      return absl::InvalidArgumentError(
          absl::StrCat("is empty, and daemon.ucx_listen \"", config.ucx_listen, "\" leaves no room for ",
                       kDataPorts, " ports from its own + ", kLanes, "; set it, or choose a lower port"));
    }
    data = {static_cast<uint16_t>(first + kLanes), static_cast<uint16_t>(first + kLanes + kDataPorts - 1)};
  }
  return UcxPorts{address(0), address(1), data};
}

}  // namespace tensorcast::transport
