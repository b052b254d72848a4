#include "core/source/mapped_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "base/steady_time.h"

namespace tensorcast::mapped_source_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(uint64_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

SourceInfo Info() { return {.type = SourceType::kLocal, .lane = "local", .name = "node-b"}; }

// Cuts `bytes` into spans of these lengths; the last takes the rest.
template <typename T>
std::vector<std::span<T>> Cut(std::span<T> bytes, std::vector<size_t> lengths) {
  std::vector<std::span<T>> spans;
  for (size_t length : lengths) {
    spans.push_back(bytes.first(length));
    bytes = bytes.subspan(length);
  }
  spans.push_back(bytes);
  return spans;
}

TEST(SourceType, SourceTypeNames_MatchTheAttribute) {
  EXPECT_EQ(SourceTypeName(SourceType::kLocal), "local");
  EXPECT_EQ(SourceTypeName(SourceType::kRemote), "remote");
  EXPECT_EQ(SourceTypeName(SourceType::kDisk), "disk");
}

TEST(MappedSource, MappedSource_CopiesAndDigestsAcrossAnySpans) {
  const Bytes image = RandomBytes(5'000'003);
  const std::vector<std::vector<size_t>> image_cuts = {{}, {1}, {1'000'000, 0, 2'000'000}, {3, 5, 4'000'000}};
  const std::vector<std::vector<size_t>> destination_cuts = {{}, {1}, {0, 65'536, 1'000'000}, {2'000'001}};
  const std::vector<ByteRange> ranges = {
      {0, 5'000'003}, {1, 3'000'000}, {999'999, 2'000'002}, {5'000'002, 1}};
  for (const auto& image_cut : image_cuts) {
    const auto source = MakeMappedSource(Info(), Cut(ConstHostSpan(image), image_cut), nullptr, 2);
    for (const ByteRange& range : ranges) {
      for (const auto& cut : destination_cuts) {
        size_t cut_bytes = 0;
        for (size_t length : cut) cut_bytes += length;
        if (cut_bytes > range.bytes) continue;
        Bytes copy(range.bytes);
        const std::vector<HostSpan> destination = Cut(HostSpan(copy), cut);
        const auto digest =
            source->Fetch({}, {.chunk = 7, .range = range, .destination = destination, .blake3 = true});
        ASSERT_TRUE(digest.ok()) << digest.status();
        const ConstHostSpan expected = ConstHostSpan(image).subspan(range.offset, range.bytes);
        ASSERT_TRUE(std::ranges::equal(copy, expected));
        ASSERT_EQ(**digest,
                  (ChunkDigests{.xxh3 = ComputeDigest(expected), .blake3 = ComputeBlake3(expected)}));
      }
    }
  }
}

TEST(MappedSource, EmptyRange_HasDigestOfNoBytes) {
  const Bytes image = RandomBytes(10);
  for (const bool empty_image : {false, true}) {
    const auto source = MakeMappedSource(
        Info(), empty_image ? std::vector<ConstHostSpan>{} : std::vector<ConstHostSpan>{image}, nullptr, 1);
    const auto digest = source->Fetch({}, {.range = {empty_image ? 0u : 10u, 0}});
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(**digest, (ChunkDigests{.xxh3 = ComputeDigest({}), .blake3 = {}})) << "none was asked for";
  }
}

TEST(MappedSource, MappedSource_RefusesRangeOutsideImage) {
  const Bytes image = RandomBytes(100);
  const auto source = MakeMappedSource(Info(), {image}, nullptr, 1);
  Bytes copy(20, std::byte{0});
  const std::vector<HostSpan> destination = {copy};
  for (const uint64_t offset : {uint64_t{81}, uint64_t{101}, ~uint64_t{0} - 5}) {
    const auto digest = source->Fetch({}, {.chunk = 3, .range = {offset, 20}, .destination = destination});
    EXPECT_EQ(digest.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(absl::StrContains(digest.status().message(), "fetch chunk 3 from node-b")) << digest.status();
  }
  EXPECT_EQ(copy, Bytes(20, std::byte{0}));
}

TEST(MappedSource, MappedSource_RefusesDestinationOfOtherLength) {
  const Bytes image = RandomBytes(100);
  const auto source = MakeMappedSource(Info(), {image}, nullptr, 1);
  Bytes copy(20);
  const std::vector<HostSpan> destination = {copy};
  for (const uint64_t bytes : {19, 21}) {
    EXPECT_EQ(source->Fetch({}, {.range = {0, bytes}, .destination = destination}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(MappedSource, MappedSource_StopsOnCancellationAndAtDeadline) {
  const Bytes image = RandomBytes(100);
  const auto source = MakeMappedSource(Info(), {image}, nullptr, 1);
  Bytes copy(100, std::byte{0});
  const std::vector<HostSpan> destination = {copy};
  const ChunkRequest request = {.range = {0, 100}, .destination = destination};
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(source->Fetch(cancelled, request).status().code(), absl::StatusCode::kCancelled);
  RequestContext late;
  late.deadline = SteadyNow() - absl::Seconds(1);
  EXPECT_EQ(source->Fetch(late, request).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(copy, Bytes(100, std::byte{0})) << "nothing was copied";
}

TEST(MappedSource, FillingMappedSource_RefusesRangeNotYetPresent) {
  const Bytes image = RandomBytes(100);
  const auto has = std::make_shared<Availability>(100, 10);
  const auto source = MakeMappedSource(Info(), {image}, nullptr, 1, has);
  EXPECT_EQ(source->availability(), has);
  Bytes copy(20, std::byte{0});
  const std::vector<HostSpan> destination = {copy};
  const ChunkRequest request = {.range = {30, 20}, .destination = destination};
  has->Add(3);
  EXPECT_EQ(source->Fetch({}, request).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(copy, Bytes(20, std::byte{0}));
  has->Add(4);
  EXPECT_TRUE(source->Fetch({}, request).ok());
  EXPECT_EQ(copy, Bytes(image.begin() + 30, image.begin() + 50));
}

TEST(MappedSource, MappedSource_HoldsItsMemoryUntilDestroyed) {
  auto image = std::make_shared<Bytes>(RandomBytes(100));
  const std::weak_ptr<Bytes> watch = image;
  const ConstHostSpan bytes = *image;
  auto source = MakeMappedSource(Info(), {bytes}, std::move(image), 1);
  EXPECT_FALSE(watch.expired());
  source.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(MappedSource, MappedSource_ServesFetchesConcurrently) {
  const Bytes image = RandomBytes(4 << 20);
  const auto source = MakeMappedSource(Info(), {image}, nullptr, 4);
  EXPECT_EQ(source->info().name, "node-b");
  EXPECT_EQ(source->max_concurrency(), 4);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&source, &image, i] {
      Bytes copy(1 << 20);
      const std::vector<HostSpan> destination = {copy};
      const ByteRange range = {i << 20, 1 << 20};
      const auto digest = source->Fetch({}, {.range = range, .destination = destination});
      ASSERT_TRUE(digest.ok()) << digest.status();
      EXPECT_EQ((*digest)->xxh3, ComputeDigest(ConstHostSpan(image).subspan(range.offset, range.bytes)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tensorcast::mapped_source_test
