#include "global_store/service/node_check.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/status.h"
#include "base/text.h"
#include "proto/types.pb.h"

namespace tensorcast::global_store {
namespace {

// Bounds of what one node may make every other process keep and show.
constexpr size_t kMaxTextBytes = 256;
// sockaddr_un holds 108 bytes, with a zero at the end.
constexpr size_t kMaxSocketPathBytes = 107;
constexpr int kMaxLanes = 16;
constexpr int kMaxDevices = 1024;
constexpr size_t kMaxExplanationBytes = 1000;

// Quoted: the value comes from the node, and the message goes into logs.
absl::Status Refuse(std::string_view field, std::string_view value, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("register a node: ", field, " is ", QuoteName(value), "; ", rule));
}

absl::Status CheckText(std::string_view field, std::string_view value, size_t max_bytes = kMaxTextBytes) {
  if (value.size() <= max_bytes && IsPrintable(value)) return absl::OkStatus();
  return Refuse(field, value,
                absl::StrCat("give at most ", max_bytes, " bytes of UTF-8 without control characters"));
}

absl::Status CheckLane(std::string_view field, std::string_view lane) {
  const bool word = std::ranges::all_of(
      lane, [](unsigned char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; });
  if (word && !lane.empty() && lane.size() <= kMaxTextBytes) return absl::OkStatus();
  return Refuse(field, lane, "give a word of lower-case letters, digits and '-'");
}

absl::Status CheckAddress(std::string_view address) {
  TC_RETURN_IF_ERROR(CheckText("grpc_address", address));
  const bool has_space = std::ranges::any_of(address, [](unsigned char c) { return absl::ascii_isspace(c); });
  if (has_space) return Refuse("grpc_address", address, "give an address without white space");
  const absl::Status valid = CheckServerAddress(address);
  return valid.ok() ? valid : Refuse("grpc_address", address, valid.message());
}

}  // namespace

// What others keep and show of a node is bounded here, at its registration. Its labels are checked with its
// identity (membership).
absl::Status CheckNodeDescription(const v1::Node& node) {
  TC_RETURN_IF_ERROR(CheckText("node_id", node.node_id()));
  TC_RETURN_IF_ERROR(CheckText("name", node.name()));
  TC_RETURN_IF_ERROR(CheckText("host_id", node.host_id()));
  TC_RETURN_IF_ERROR(CheckText("handle_socket", node.handle_socket(), kMaxSocketPathBytes));
  TC_RETURN_IF_ERROR(CheckAddress(node.grpc_address()));
  if (std::max(node.lanes_size(), node.device_lanes_size()) > kMaxLanes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register a node: the node names more than ", kMaxLanes, " lanes; name fewer lanes"));
  }
  if (std::max(node.devices_size(), node.unhealthy_devices_size()) > kMaxDevices) {
    return absl::InvalidArgumentError(absl::StrCat("register a node: the node names more than ", kMaxDevices,
                                                   " devices; name fewer devices"));
  }
  for (const std::string& lane : node.lanes()) TC_RETURN_IF_ERROR(CheckLane("a name in lanes", lane));
  for (const std::string& lane : node.device_lanes()) {
    TC_RETURN_IF_ERROR(CheckLane("a name in device_lanes", lane));
  }
  for (const v1::Device& device : node.devices()) {
    TC_RETURN_IF_ERROR(CheckText("a device's uuid", device.uuid()));
    TC_RETURN_IF_ERROR(CheckText("a device's name", device.name()));
  }
  return absl::OkStatus();
}

std::string ExplanationOf(std::string_view text) { return Printable(text.substr(0, kMaxExplanationBytes)); }

}  // namespace tensorcast::global_store
