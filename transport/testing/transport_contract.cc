#include "transport/testing/transport_contract.h"

#include <algorithm>

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
