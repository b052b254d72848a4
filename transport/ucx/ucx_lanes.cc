#include "transport/ucx/ucx_lanes.h"

#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

UcxOptions OptionsFor(UcxLane lane, const LaneConfig& config) {
  const bool rma = lane == UcxLane::kRma;
  return {.lane = lane,
          .listen = rma ? config.ucx_rma_listen : config.ucx_listen,
          .advertise_host = config.advertise_host,
          .data_ports = config.ucx_data_ports,
          .tls = rma ? config.ucx_rma_tls : ""};
}

Lane DescribeLane(UcxLane lane) {
  return {.name = UcxLaneName(lane), .make = [lane](const LaneConfig& config) {
            return UcxTransport::Create(OptionsFor(lane, config));
          }};
}

}  // namespace

Lane UcxMessagesLane() {
  Lane lane = DescribeLane(UcxLane::kMessages);
  lane.help = "messages over TCP, or whatever network UCX finds";
  return lane;
}

Lane UcxRmaLane() {
  Lane lane = DescribeLane(UcxLane::kRma);
  lane.help = "one-sided reads of the source's memory, over RDMA networks";
  lane.opens_pool = true;
  lane.optional = true;
  return lane;
}

}  // namespace tensorcast::transport
