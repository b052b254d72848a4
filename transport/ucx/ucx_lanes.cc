#include "transport/ucx/ucx_lanes.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/address.h"
#include "base/status.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

constexpr uint16_t kMaxPort = 65535;

bool OverTcp() { return std::getenv(kUcxOverTcpVariable) != nullptr; }

absl::StatusOr<std::unique_ptr<Transport>> Open(UcxLane lane, const LaneConfig& config) {
  const std::string listen = config.Value(kUcxListenKey);
  UcxOptions options{.lane = lane,
                     .listen = "",
                     .advertise_host = config.advertise_host,
                     .over_tcp = OverTcp(),
                     .devices = config.devices};
  if (!listen.empty()) {
    TC_ASSIGN_OR_RETURN(options.listen, UcxListenAddress(lane, listen));
  }
  LOG_IF(WARNING, options.over_tcp) << "open the lane " << UcxLaneName(lane)
                                    << ": the lane goes over TCP, which is for tests; every process that "
                                       "reaches the lane's ports can write to this process's memory";
  return UcxTransport::Create(options);
}

// At most one sentence about whether UCX may be opened at all; what cannot be helped goes before what can.
std::vector<LaneProblem> Check(const LaneConfig& config) {
  std::vector<LaneProblem> problems;
  const std::string listen = config.Value(kUcxListenKey);
  const absl::Status device = OverTcp() ? absl::OkStatus() : RequireRdmaDevice();
  if (!device.ok()) {
    // Without the operation and the remedy, which are those of a lane that is opened.
    std::string_view why = absl::StripPrefix(device.message(), "start UCX: ");
    why = why.substr(0, why.find(';'));
    problems.push_back(
        {kUcxListenKey, absl::StrCat("\"", listen, "\": UCX needs RDMA, and ", why,
                                     "; load the driver of the device, or leave daemon.ucx_listen out and "
                                     "set daemon.tcp_listen")});
  } else if (!config.trusted_fabric) {
    problems.push_back(
        {kUcxListenKey,
         absl::StrCat(
             "\"", listen,
             "\": UCX checks no certificates, so every process that reaches the ports of UCX can read this "
             "daemon's memory; leave daemon.ucx_listen out or, on a fabric that you trust, set "
             "security.trusted_fabric: true")});
  }
  // The lanes take two ports in a row: the second has to exist.
  if (const absl::Status next = UcxListenAddress(UcxLane::kRma, listen).status(); !next.ok()) {
    problems.push_back({kUcxListenKey, std::string(next.message())});
  }
  return problems;
}

Lane DescribeLane(UcxLane lane) {
  return {.name = UcxLaneName(lane),
          .pins_pool = true,
          .keys = {kUcxListenKey},
          .listen_key = kUcxListenKey,
          .check = Check,
          .make = [lane](const LaneConfig& config) { return Open(lane, config); }};
}

}  // namespace

Lane UcxMessagesLane() {
  Lane lane = DescribeLane(UcxLane::kMessages);
  lane.help = "messages over RDMA networks, by UCX";
  lane.serves_filling = true;
  return lane;
}

Lane UcxRmaLane() {
  Lane lane = DescribeLane(UcxLane::kRma);
  lane.help = "one-sided reads of the source's memory over RDMA networks, by UCX";
  lane.opens_pool = true;
  lane.memory = LaneMemory::kHostAndDevice;
  return lane;
}

absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, std::string_view text) {
  TC_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(text));
  if (listen.port == kMaxPort) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" has the last port, and the lane ucx-rma needs the next port; choose a port below ",
        kMaxPort));
  }
  if (lane == UcxLane::kRma && listen.port != 0) ++listen.port;
  return FormatHostPort(listen);
}

}  // namespace tensorcast::transport
