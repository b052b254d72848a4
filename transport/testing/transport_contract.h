// The test suite of every transport. A lane's test instantiates TransportContract with a LaneUnderTest and
// compiles this folder's contract sources: it links tensorcast::transport_testing, which carries them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/testing/protocol_peer.h"
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
  // False if the network library is known to abort a source if its receiver vanishes during a read.
  bool source_survives_lost_receivers = true;
  // Makes the test's end of a connection, for ProtocolContract.
  std::function<std::unique_ptr<ProtocolPeer>()> new_peer = nullptr;

  friend void PrintTo(const LaneUnderTest& lane, std::ostream* os) { *os << lane.lane; }
};

inline constexpr uint64_t kTestChunkBytes = uint64_t{1} << 20;

// A source and a receiver in this process, each with its own registered memory.
class TransportContract : public ::testing::TestWithParam<LaneUnderTest> {
 protected:
  static constexpr uint64_t kMemoryBytes = 48 * kTestChunkBytes;

  void SetUp() override;

  // Serves the pattern in place, in segments of odd lengths at the start of the source's memory.
  std::unique_ptr<Serving> ServePattern(uint64_t image_bytes);
  std::unique_ptr<Serving> ServeStaged(uint64_t image_bytes, StagedImage::ReadHook before_read = nullptr);
  std::unique_ptr<Pull> ConnectTo(std::string_view descriptor);
  // `image_bytes` bytes of the receiver's memory from `at` on, in spans of odd lengths.
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

// For lanes that serve images while they fill. The source's memory has room for one image, which has no
// chunks at first.
class FillingContract : public TransportContract {
 public:
  static constexpr uint64_t kImageBytes = 20 * kTestChunkBytes + 12345;
  static constexpr uint32_t kChunks = 21;

 protected:
  static constexpr std::byte kNotYet{0xee};

  void SetUp() override;

  static uint64_t OffsetOf(uint32_t chunk) { return chunk * kTestChunkBytes; }
  static uint64_t BytesOf(uint32_t chunk);
  // Writes the chunk, then adds it to availability_.
  void Fill(uint32_t chunk);
  std::unique_ptr<Serving> ServeFilling();

  // Fetches these bytes into their place in the receiver's memory; returns the fetch's result.
  absl::Status Fetch(Pull& pull, uint64_t offset, uint64_t bytes);
  absl::Status FetchChunk(Pull& pull, uint32_t chunk) { return Fetch(pull, OffsetOf(chunk), BytesOf(chunk)); }
  // Whether the receiver's memory holds the chunk, or was never written there.
  bool Holds(uint32_t chunk) const;
  bool IsUntouched(uint32_t chunk) const;

  const std::vector<HostSpan> image_ = Fragment(source_memory_.span(0, kImageBytes), 3 * kTestChunkBytes);
  const std::vector<HostSpan> destination_ = Destination(kImageBytes);
  const std::shared_ptr<Availability> availability_ =
      std::make_shared<Availability>(kImageBytes, kTestChunkBytes);
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FillingContract);

// Tests the pull protocol over the lane's channel, for lanes with a ProtocolPeer: a source to which peers
// connect, and a receiver that connects to a peer.
class ProtocolContract : public TransportContract {
 public:
  static constexpr uint64_t kImageBytes = 100000;
  static constexpr uint64_t kFillingChunkBytes = 4096;

 protected:
  static constexpr pull::Welcome kWelcome = {
      .max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

  void SetUp() override;
  static std::string Pattern(uint64_t offset, uint64_t bytes);

  // Serves the image instead of the previous one. Its memory holds all bytes, even if `availability` says
  // that chunks are missing.
  void Serve(std::shared_ptr<const Availability> availability = nullptr);
  std::shared_ptr<Availability> ServeFilling();
  std::unique_ptr<ProtocolPeer> Connected() const;
  // A peer that has sent HELLO and received WELCOME.
  std::unique_ptr<ProtocolPeer> Introduced() const;
  pull::Hello HelloFrame() const;
  // Expects the whole answer to one request: its pieces, in order.
  static void ExpectAnswer(ProtocolPeer& peer, const pull::Request& request);
  // Expects that the source still serves a receiver that keeps to the protocol.
  void ExpectServed() const;

  // Connects pull_ to peer_, which answers HELLO with `answer`.
  absl::Status ConnectPull(const pull::Frame& answer);
  // Connects pull_ to peer_ for an image that fills, until peer_ has received FOLLOW.
  void ConnectFillingPull();
  // Fetches image bytes [10, 1010) into Place().
  pull::Request Fetch();
  HostSpan Place() const { return receiver_memory_.span(900000, 1000); }
  // Makes peer_ send these bytes of the image.
  void SendPattern(uint64_t request_id, uint64_t offset, uint32_t bytes);
  // The result of the last fetch.
  absl::Status Result();
  void ExpectBrokenAndNothingWritten();

  std::unique_ptr<Serving> serving_;
  pull::Descriptor descriptor_;
  std::unique_ptr<ProtocolPeer> peer_;
  std::string peer_address_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProtocolContract);

// Starts fetches of all chunks of the image, and does not wait for them.
void FetchAll(Pull& pull, const std::vector<HostSpan>& destination, Completions& completions,
              SteadyTime deadline = SteadyTime::InfiniteFuture());
// Calls FetchAll and waits for the fetches: OK, or the first error.
absl::Status PullAll(Pull& pull, const std::vector<HostSpan>& destination);

uint64_t TotalBytes(const std::vector<HostSpan>& spans);

}  // namespace tensorcast::transport
