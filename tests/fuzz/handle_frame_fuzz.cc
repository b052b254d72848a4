// A frame of the handle socket, prefix included.
#include "absl/log/check.h"
#include "core/handles/codec.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// What is valid can be mapped: every extent lies in its segment and in the image.
void CheckHandles(const ReplicaHandles& handles) {
  const auto* host = std::get_if<HostHandles>(&handles.memory);
  if (host == nullptr || !CheckHostHandles(*host, handles.image_bytes).ok()) return;
  CHECK_EQ(DescriptorsOf(handles), host->segments.size());
  for (const SegmentExtent& extent : host->extents) {
    CHECK_LE(extent.bytes, host->segments[extent.segment].bytes - extent.offset);
    CHECK_LT(extent.image_offset, handles.image_bytes);
    CHECK(host->Covers(extent.image_offset, 1));
  }
}

}  // namespace

void TestOneInput(std::string_view input) {
  if (input.size() < kFramePrefixBytes) return;
  const auto length = DecodeFramePrefix(Bytes(input).first<kFramePrefixBytes>(), kMaxServerFrameBytes);
  if (length.ok()) CHECK(*length > 0 && *length <= kMaxServerFrameBytes);
  const absl::StatusOr<Frame> frame = DecodeFrame(Bytes(input).subspan(kFramePrefixBytes));
  if (!frame.ok()) return;
  // What was understood can be said again, and means the same.
  const absl::StatusOr<std::string> encoded = EncodeFrame(*frame);
  CHECK_OK(encoded.status());
  const absl::StatusOr<Frame> again = DecodeFrame(Bytes(*encoded).subspan(kFramePrefixBytes));
  CHECK_OK(again.status());
  CHECK_EQ(again->index(), frame->index());
  if (const auto* handles = std::get_if<HandlesFrame>(&*frame)) CheckHandles(handles->handles);
  CHECK(EncodeFrame(*again).value() == *encoded) << FrameName(*frame);
}

std::vector<std::string> Seeds() {
  const IpcHandle ipc{};
  const ReplicaHandles host{
      .replica_id = "r1",
      .artifact_id = "tc2:a",
      .image_bytes = 8192,
      .memory = HostHandles{.pool_id = "pool",
                            .segments = {{0, 1 << 22}, {2, 1 << 22}},
                            .extents = {{0, 0, 1 << 21, 1 << 21}, {1 << 22, 1, 0, 1 << 21}}}};
  const ReplicaHandles device{
      .replica_id = "r2", .artifact_id = "tc2:b", .image_bytes = 1, .memory = DeviceHandles{ipc}};
  const ReplicaHandles file{
      .replica_id = "r3", .artifact_id = "", .image_bytes = 0, .memory = FileHandles{4096}};
  const std::vector<Frame> frames = {HelloFrame{},
                                     HelloAckFrame{1},
                                     ClaimFrame{"ticket"},
                                     HandlesFrame{host},
                                     HandlesFrame{device},
                                     HandlesFrame{file},
                                     OfferFrame{.bytes = 4096},
                                     OfferFrame{.bytes = 4096, .ipc = ipc},
                                     OfferedFrame{"token"},
                                     ClosedFrame{},
                                     ErrorFrame{absl::NotFoundError("no such ticket")},
                                     DescriptorsFrame{},
                                     FollowFrame{},
                                     HaveFrame{.first_chunk = 64, .words = {1, ~uint64_t{0}}},
                                     HaveEndFrame{absl::OkStatus()},
                                     HaveEndFrame{absl::CancelledError("the ingest was cancelled")},
                                     OpeningFrame{},
                                     StreamFrame{.image_bytes = 4096},
                                     RingFrame{.token = "token", .shape = {.slots = 2, .slot_bytes = 4096}},
                                     OfferFilesFrame{1},
                                     OfferFilesFrame{kMaxOfferedFiles}};
  std::vector<std::string> seeds;
  for (const Frame& frame : frames) seeds.push_back(EncodeFrame(frame).value());
  return seeds;
}

}  // namespace tensorcast::fuzz
