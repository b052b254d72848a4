#include "transport/lanes/lanes.h"

#include <algorithm>

#include "absl/base/no_destructor.h"
#include "core/replica/transfer_report.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/ucx/ucx_lanes.h"

namespace tensorcast::transport {
namespace {

// No transport: the daemon attaches to the other one's pool (daemon/sources/local_attach.h).
Lane LocalLane() {
  return {.name = kLocalLane,
          .help = "attach to a daemon of the same host",
          .opens_pool = true,
          .serves_filling = true};
}

bool OpensPool(std::string_view name) {
  const Lane* lane = FindLane(name);
  return lane != nullptr && lane->opens_pool;
}

}  // namespace

const std::vector<Lane>& Lanes() {
  // Fastest first, the order in which callers choose.
  static const absl::NoDestructor<std::vector<Lane>> lanes(std::vector<Lane>{
      LocalLane(),
      UcxRmaLane(),
      UcxMessagesLane(),
      TcpLane(),
  });
  return *lanes;
}

const Lane* FindLane(std::string_view name) {
  const auto found = std::ranges::find(Lanes(), name, &Lane::name);
  return found == Lanes().end() ? nullptr : &*found;
}

std::vector<std::string> TransportLaneNames() {
  std::vector<std::string> names;
  for (const Lane& lane : Lanes()) {
    // "local" has no transport to be made.
    if (lane.make) names.emplace_back(lane.name);
  }
  return names;
}

std::vector<std::string> LaneNames() {
  std::vector<std::string> names;
  for (const Lane& lane : Lanes()) names.emplace_back(lane.name);
  return names;
}

std::vector<std::string> FillingLaneNames() {
  std::vector<std::string> names;
  for (const Lane& lane : Lanes()) {
    if (lane.serves_filling) names.emplace_back(lane.name);
  }
  return names;
}

bool LaneCovers(std::string_view granted, std::string_view wanted) {
  // A grant for the whole pool's memory allows a lane on which the source sends only what is asked for.
  return granted == wanted || (OpensPool(granted) && !OpensPool(wanted));
}

}  // namespace tensorcast::transport
