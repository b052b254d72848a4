// What every transport must do, as one test suite. A lane's test instantiates TransportContract with a
// LaneUnderTest and compiles this folder's contract sources (link tensorcast::transport_testing, which
// carries them).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/testing/source_process.h"
#include "transport/testing/test_image.h"
#include "transport/transport.h"

namespace tensorcast::transport {

struct LaneUnderTest {
  std::string lane;
  // A transport that can be a source and a receiver.
  TransportFactory create;
  bool serves_staged_images = true;
  bool serves_filling_images = true;
  // Whether a fetch of an image in place comes with its digest.
  bool digests_on_the_way = true;
  // False where the network library is known to abort a source when its receiver vanishes in mid-read.
  bool source_survives_lost_receivers = true;

  friend void PrintTo(const LaneUnderTest& lane, std::ostream* os) { *os << lane.lane; }
};

inline constexpr uint64_t kTestChunkBytes = uint64_t{1} << 20;

// A source and a receiver in this process, each with a registered memory of its own.
class TransportContract : public ::testing::TestWithParam<LaneUnderTest> {
 protected:
  static constexpr uint64_t kMemoryBytes = 48 * kTestChunkBytes;

  void SetUp() override;

  // Serves the pattern, in place, in odd segments, from the start of the source's memory.
  std::unique_ptr<Serving> ServePattern(uint64_t image_bytes);
  std::unique_ptr<Serving> ServeStaged(uint64_t image_bytes, StagedImage::ReadHook before_read = nullptr);
  std::unique_ptr<Pull> ConnectTo(std::string_view descriptor);
  // The start of the receiver's memory, in odd pieces.
  std::vector<HostSpan> Destination(uint64_t image_bytes, uint64_t at = 0) const;

  std::unique_ptr<Transport> NewTransport() const { return GetParam().create(GetParam().lane); }

  TestMemory source_memory_{kMemoryBytes};
  TestMemory receiver_memory_{kMemoryBytes};
  std::unique_ptr<Transport> source_;
  std::unique_ptr<Transport> receiver_;
};

// For lanes that reach other processes; their test's main() calls MaybeRunSourceProcess.
class SourceProcessContract : public TransportContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SourceProcessContract);

// For lanes that serve images while they fill: the source's memory has room for one, of which nothing is
// there.
class FillingContract : public TransportContract {
 public:
  static constexpr uint64_t kImageBytes = 20 * kTestChunkBytes + 12345;
  static constexpr uint32_t kChunks = 21;

 protected:
  static constexpr std::byte kNotYet{0xee};

  void SetUp() override;

  static uint64_t OffsetOf(uint32_t chunk) { return chunk * kTestChunkBytes; }
  static uint64_t BytesOf(uint32_t chunk);
  // Writes the chunk, then says that it is there.
  void Fill(uint32_t chunk);
  std::unique_ptr<Serving> ServeFilling();

  // What the fetch of some bytes, into their place, comes to.
  absl::Status Fetch(Pull& pull, uint64_t offset, uint64_t bytes);
  absl::Status FetchChunk(Pull& pull, uint32_t chunk) { return Fetch(pull, OffsetOf(chunk), BytesOf(chunk)); }
  // Of the receiver's memory.
  bool Holds(uint32_t chunk) const;
  bool IsUntouched(uint32_t chunk) const;

  const std::vector<HostSpan> image_ = Fragment(source_memory_.span(0, kImageBytes), 3 * kTestChunkBytes);
  const std::vector<HostSpan> destination_ = Destination(kImageBytes);
  const std::shared_ptr<Availability> availability_ =
      std::make_shared<Availability>(kImageBytes, kTestChunkBytes);
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FillingContract);

// Fetches all of the image in chunks, all of them at once.
void FetchAll(Pull& pull, const std::vector<HostSpan>& destination, Completions& completions,
              SteadyTime deadline = SteadyTime::InfiniteFuture());
// FetchAll, waited for: OK, or the first error.
absl::Status PullAll(Pull& pull, const std::vector<HostSpan>& destination);

uint64_t TotalBytes(const std::vector<HostSpan>& spans);

}  // namespace tensorcast::transport
