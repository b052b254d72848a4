// The other end of a connection as a test wants it: it writes any bytes, well formed or not, and reads frames
// one at a time. Every wait ends with a failed test after half a minute. For tests.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include "base/posix/unique_fd.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport::tcp {

// What tests of this folder say to the other end.
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

  // As a receiver does.
  static RawPeer ConnectTo(const std::string& address);

  void Send(const Frame& frame) { SendBytes(EncodeFrame(frame)); }
  void SendPiece(const Data& head, std::string_view piece);
  void SendBytes(std::string_view bytes);

  // The next frame; BYE, which no source sends, and a failure, when there is none.
  Frame Next();
  template <typename T>
  T NextAs() {
    const Frame frame = Next();
    const T* message = std::get_if<T>(&frame);
    EXPECT_NE(message, nullptr) << "frame of type " << frame.index();
    return message != nullptr ? *message : T{};
  }
  // The next so many bytes, fewer when the connection ends.
  std::string ReadBytes(size_t bytes);
  // Whether the other end closes the connection, whatever it sends before.
  bool IsClosed();
  // Whether it says nothing now.
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
