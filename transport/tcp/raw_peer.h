// One end of a connection, for tests: sends any bytes, well formed or not, and reads frames one at a time. A
// wait of more than half a minute fails the test.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include "base/posix/unique_fd.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport::tcp {

// The frames and codecs that the tests of this folder use.
using pull::Bye;
using pull::Cancel;
using pull::Data;
using pull::DecodeDescriptor;
using pull::DecodedFrame;
using pull::DecodeFrame;
using pull::Descriptor;
using pull::EncodeDescriptor;
using pull::EncodeFrame;
using pull::Error;
using pull::Follow;
using pull::Frame;
using pull::Have;
using pull::Hello;
using pull::kDataHeadBytes;
using pull::kHaveWordBits;
using pull::kMaxHaveWords;
using pull::kWholePull;
using pull::NotHere;
using pull::Request;
using pull::Welcome;

class RawPeer {
 public:
  RawPeer() = default;
  explicit RawPeer(UniqueFd socket);

  // Connects as a receiver does.
  static RawPeer ConnectTo(const std::string& address);

  void Send(const Frame& frame) { SendBytes(EncodeFrame(frame)); }
  void SendPiece(const Data& head, std::string_view piece);
  void SendBytes(std::string_view bytes);

  // The next frame. If none comes, the test fails and the result is BYE, which no source sends.
  Frame Next();
  template <typename T>
  T NextAs() {
    const Frame frame = Next();
    const T* message = std::get_if<T>(&frame);
    EXPECT_NE(message, nullptr) << "frame of type " << frame.index();
    return message != nullptr ? *message : T{};
  }
  // The next `bytes` bytes; fewer if the connection ends first.
  std::string ReadBytes(size_t bytes);
  // Waits until the other end closes the connection, and drops the bytes that arrive before. False if the
  // other end does not close.
  bool IsClosed();
  // True if the connection is open and has no unread bytes now.
  bool HasNothingToRead() const;

  // Ends the connection with a TCP reset.
  void Reset();
  void Close() { socket_ = UniqueFd(); }

 private:
  UniqueFd socket_;
};

// Listens as a source does.
class RawListener {
 public:
  RawListener();
  const std::string& address() const { return address_; }
  RawPeer Accept();

 private:
  UniqueFd socket_;
  std::string address_;
};

}  // namespace tensorcast::transport::tcp
