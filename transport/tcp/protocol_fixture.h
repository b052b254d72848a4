// The fixture of the protocol's tests: a transport that serves one image, and peers that send it any frames.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/pull/wire.h"
#include "transport/tcp/raw_peer.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/test_image.h"

namespace tensorcast::transport::tcp {

inline constexpr uint64_t kImageBytes = 100000;
// More than the kernel buffers between two ends.
inline constexpr uint64_t kLargeBytes = uint64_t{48} << 20;

inline std::string Pattern(uint64_t offset, uint64_t bytes) {
  std::string pattern(bytes, '\0');
  WritePattern(HostSpan(reinterpret_cast<std::byte*>(pattern.data()), bytes), offset);
  return pattern;
}

class ProtocolTest : public ::testing::Test {
 protected:
  void SetUp() override { Open({}); }

  void Open(const TcpOptions& options) {
    serving_.reset();
    transport_ = TcpTransport::Create(options).value();
    ASSERT_EQ(transport_->RegisterMemory(memory_.data(), memory_.bytes()), absl::OkStatus());
    Serve(kImageBytes);
  }
  // Serves an image with the pattern. `availability`: its present chunks if it fills. The memory holds all
  // bytes in any case.
  void Serve(uint64_t bytes, std::shared_ptr<const Availability> availability = nullptr) {
    WritePattern(memory_.span(0, bytes), 0);
    serving_ = transport_
                   ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, bytes)},
                                                          std::move(availability)),
                           /*receiver=*/"")
                   .value();
    descriptor_ = DecodeDescriptor(kTcpLane, serving_->descriptor()).value();
  }

  RawPeer Connect() { return RawPeer::ConnectTo(transport_->address()); }
  // A peer that has sent HELLO and received WELCOME.
  RawPeer Introduced() {
    RawPeer peer = Connect();
    peer.Send(HelloFrame());
    EXPECT_EQ(peer.NextAs<Welcome>().image_bytes, descriptor_.image_bytes);
    return peer;
  }
  Hello HelloFrame() const { return {.pull_id = descriptor_.pull_id}; }

  // Expects the whole answer to one request: its pieces, in order.
  static void ExpectAnswer(RawPeer& peer, const Request& request) {
    for (uint64_t offset = request.offset; offset < request.offset + request.bytes;) {
      const Data data = peer.NextAs<Data>();
      ASSERT_EQ(data.request_id, request.id);
      ASSERT_EQ(data.offset, offset);
      ASSERT_LE(data.bytes, request.offset + request.bytes - offset);
      EXPECT_TRUE(peer.ReadBytes(data.bytes) == Pattern(offset, data.bytes));
      offset += data.bytes;
    }
  }

  // Expects that the transport still serves a receiver that keeps to the protocol.
  void ExpectServed() {
    RawPeer peer = Introduced();
    const Request all{.id = 1, .offset = 0, .bytes = descriptor_.image_bytes};
    peer.Send(all);
    ExpectAnswer(peer, all);
    peer.Send(Bye{});
    EXPECT_TRUE(peer.IsClosed());
  }

  TestMemory memory_{kLargeBytes};
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<Serving> serving_;
  Descriptor descriptor_;
};

}  // namespace tensorcast::transport::tcp
