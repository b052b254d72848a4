// One end of a connection that a test controls: it writes any bytes, well formed or not, and reads frames one
// at a time. Every wait ends with a failed test after half a minute. Only for tests.
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
  // The next `bytes` bytes; fewer if the connection ends before.
  std::string ReadBytes(size_t bytes);
  // Waits until the other end closes the connection, whatever it sends before; false if it does not.
  bool IsClosed();
  // Whether no bytes have arrived that are still to be read.
  bool HasNothingToRead() const;

  // Ends the connection with a reset instead of an end.
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
