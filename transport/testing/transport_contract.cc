#include "transport/testing/transport_contract.h"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>

#include "base/steady_time.h"

namespace tensorcast::transport {

void TransportContract::SetUp() {
  source_ = NewTransport();
  receiver_ = NewTransport();
  ASSERT_TRUE(source_->RegisterMemory(source_memory_.data(), source_memory_.bytes()).ok());
  ASSERT_TRUE(receiver_->RegisterMemory(receiver_memory_.data(), receiver_memory_.bytes()).ok());
}

std::unique_ptr<Serving> TransportContract::ServePattern(uint64_t image_bytes) {
  const std::vector<HostSpan> segments = Fragment(source_memory_.span(0, image_bytes), 3 * kTestChunkBytes);
  WritePattern(segments);
  auto serving = source_->Serve(std::make_shared<InPlaceImage>(segments), /*receiver=*/"");
  EXPECT_TRUE(serving.ok()) << serving.status();
  return serving.ok() ? *std::move(serving) : nullptr;
}

std::unique_ptr<Serving> TransportContract::ServeStaged(uint64_t image_bytes,
                                                        StagedImage::ReadHook before_read) {
  auto serving =
      source_->Serve(std::make_shared<StagedImage>(image_bytes, source_memory_.span(0, kTestChunkBytes), 3,
                                                   std::move(before_read)),
                     /*receiver=*/"");
  EXPECT_TRUE(serving.ok()) << serving.status();
  return serving.ok() ? *std::move(serving) : nullptr;
}

std::unique_ptr<Pull> TransportContract::ConnectTo(std::string_view descriptor) {
  auto pull = receiver_->Connect(RequestContext::Background(absl::Seconds(30)), descriptor);
  EXPECT_TRUE(pull.ok()) << pull.status();
  return pull.ok() ? *std::move(pull) : nullptr;
}

std::vector<HostSpan> TransportContract::Destination(uint64_t image_bytes, uint64_t at) const {
  return Fragment(receiver_memory_.span(at, image_bytes), 2 * kTestChunkBytes);
}

void FillingContract::SetUp() {
  TransportContract::SetUp();
  for (const HostSpan& span : image_) std::ranges::fill(span, kNotYet);
}

uint64_t FillingContract::BytesOf(uint32_t chunk) {
  return std::min(kTestChunkBytes, kImageBytes - OffsetOf(chunk));
}

void FillingContract::Fill(uint32_t chunk) {
  uint64_t offset = OffsetOf(chunk);
  for (const HostSpan& span : Slice(image_, offset, BytesOf(chunk))) {
    WritePattern(span, offset);
    offset += span.size();
  }
  availability_->Add(chunk);
}

std::unique_ptr<Serving> FillingContract::ServeFilling() {
  auto serving = source_->Serve(std::make_shared<InPlaceImage>(image_, availability_), /*receiver=*/"");
  EXPECT_TRUE(serving.ok()) << serving.status();
  return serving.ok() ? *std::move(serving) : nullptr;
}

absl::Status FillingContract::Fetch(Pull& pull, uint64_t offset, uint64_t bytes) {
  Completions done;
  pull.Fetch(offset, Slice(destination_, offset, bytes), SteadyTime::InfiniteFuture(), done.Expect());
  if (!done.Wait()) {
    ADD_FAILURE() << "a fetch did not complete";
    std::abort();
  }
  EXPECT_FALSE(done.repeated());
  return done.statuses()[0];
}

bool FillingContract::Holds(uint32_t chunk) const {
  return HoldPattern(Slice(destination_, OffsetOf(chunk), BytesOf(chunk)), OffsetOf(chunk));
}

bool FillingContract::IsUntouched(uint32_t chunk) const {
  return std::ranges::all_of(Slice(destination_, OffsetOf(chunk), BytesOf(chunk)),
                             [](const HostSpan& span) { return HoldsOnly(span, std::byte{0}); });
}

void ProtocolContract::SetUp() {
  TransportContract::SetUp();
  WritePattern(source_memory_.span(0, kImageBytes), 0);
  Serve();
}

std::string ProtocolContract::Pattern(uint64_t offset, uint64_t bytes) {
  std::string pattern(bytes, '\0');
  WritePattern(HostSpan(reinterpret_cast<std::byte*>(pattern.data()), bytes), offset);
  return pattern;
}

void ProtocolContract::Serve(std::shared_ptr<const Availability> availability) {
  serving_ = source_
                 ->Serve(std::make_shared<InPlaceImage>(
                             std::vector<HostSpan>{source_memory_.span(0, kImageBytes)}, availability),
                         /*receiver=*/"")
                 .value();
  descriptor_ = pull::DecodeDescriptor(source_->name(), serving_->descriptor()).value();
}

std::shared_ptr<Availability> ProtocolContract::ServeFilling() {
  auto availability = std::make_shared<Availability>(kImageBytes, kFillingChunkBytes);
  Serve(availability);
  return availability;
}

std::unique_ptr<ProtocolPeer> ProtocolContract::Connected() const {
  std::unique_ptr<ProtocolPeer> peer = GetParam().new_peer();
  peer->Connect(descriptor_.addresses.front());
  return peer;
}

std::unique_ptr<ProtocolPeer> ProtocolContract::Introduced() const {
  std::unique_ptr<ProtocolPeer> peer = Connected();
  peer->Send(HelloFrame());
  EXPECT_EQ(peer->NextAs<pull::Welcome>().image_bytes, kImageBytes);
  return peer;
}

pull::Hello ProtocolContract::HelloFrame() const {
  // A peer by UCX has segments of 64 KiB, and a longer message would abort the process.
  return {.max_piece_bytes = 50000, .pull_id = descriptor_.pull_id};
}

void ProtocolContract::ExpectAnswer(ProtocolPeer& peer, const pull::Request& request) {
  for (uint64_t offset = request.offset; offset < request.offset + request.bytes;) {
    const auto data = peer.NextAs<pull::Data>();
    ASSERT_EQ(data.request_id, request.id);
    ASSERT_EQ(data.offset, offset);
    ASSERT_LE(data.bytes, request.offset + request.bytes - offset);
    EXPECT_TRUE(peer.ReadBytes(data.bytes) == Pattern(offset, data.bytes));
    offset += data.bytes;
  }
}

void ProtocolContract::ExpectServed() const {
  const std::unique_ptr<ProtocolPeer> peer = Introduced();
  const pull::Request all{.id = 1, .offset = 0, .bytes = kImageBytes};
  peer->Send(all);
  ExpectAnswer(*peer, all);
  peer->Send(pull::Bye{});
  peer->NextAs<pull::Bye>();
}

absl::Status ProtocolContract::ConnectPull(const pull::Frame& answer) {
  peer_ = GetParam().new_peer();
  peer_address_ = peer_->Listen();
  const pull::Descriptor descriptor{
      .lane = std::string(receiver_->name()), .image_bytes = kImageBytes, .addresses = {peer_address_}};
  absl::Status status;
  std::thread connecting([&] {
    absl::StatusOr<std::unique_ptr<Pull>> pull =
        receiver_->Connect(RequestContext::Background(absl::Seconds(30)), pull::EncodeDescriptor(descriptor));
    status = pull.status();
    if (pull.ok()) pull_ = *std::move(pull);
  });
  peer_->NextAs<pull::Hello>();
  peer_->Send(answer);
  connecting.join();
  return status;
}

void ProtocolContract::ConnectFillingPull() {
  pull::Welcome welcome = kWelcome;
  welcome.chunk_bytes = kFillingChunkBytes;
  ASSERT_EQ(ConnectPull(welcome), absl::OkStatus());
  peer_->NextAs<pull::Follow>();
  ASSERT_NE(pull_->availability(), nullptr);
}

pull::Request ProtocolContract::Fetch() {
  pull_->Fetch(10, {Place()}, SteadyTime::InfiniteFuture(), done_.Expect());
  return peer_->NextAs<pull::Request>();
}

void ProtocolContract::SendPattern(uint64_t request_id, uint64_t offset, uint32_t bytes) {
  peer_->SendPiece({.request_id = request_id, .offset = offset, .bytes = bytes}, Pattern(offset, bytes));
}

absl::Status ProtocolContract::Result() {
  EXPECT_TRUE(done_.Wait());
  return done_.statuses().back();
}

void ProtocolContract::ExpectBrokenAndNothingWritten() {
  const absl::Status status = Result();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(HoldsOnly(receiver_memory_.span(900000, 2000), std::byte{0}));
  pull_->Fetch(0, {Place()}, SteadyTime::InfiniteFuture(), done_.Expect());
  EXPECT_FALSE(Result().ok());
  EXPECT_TRUE(peer_->IsClosed());
}

uint64_t TotalBytes(const std::vector<HostSpan>& spans) {
  uint64_t bytes = 0;
  for (const HostSpan& span : spans) bytes += span.size();
  return bytes;
}

void FetchAll(Pull& pull, const std::vector<HostSpan>& destination, Completions& completions,
              SteadyTime deadline) {
  const uint64_t bytes = TotalBytes(destination);
  for (uint64_t offset = 0; offset < bytes; offset += kTestChunkBytes) {
    const uint64_t count = std::min(kTestChunkBytes, bytes - offset);
    pull.Fetch(offset, Slice(destination, offset, count), deadline, completions.Expect());
  }
}

absl::Status PullAll(Pull& pull, const std::vector<HostSpan>& destination) {
  Completions completions;
  FetchAll(pull, destination, completions);
  if (!completions.Wait()) {
    ADD_FAILURE() << "fetches did not complete";
    std::abort();
  }
  for (const absl::Status& status : completions.statuses()) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::transport
