// One end of a connection that a test controls: it sends any frames in any order, and keeps the frames that
// it receives. The test suite of the pull protocol uses it against both ends of a lane. A lane's test
// implements it.
//
// Used by one thread. A wait in which nothing arrives ends with a failed test.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include "transport/pull/wire.h"

namespace tensorcast::transport {

class ProtocolPeer {
 public:
  virtual ~ProtocolPeer() = default;

  // A test calls one of these, once. Connect: as a receiver, to the address in a descriptor. Listen: as a
  // source; returns the address, to which one receiver connects.
  virtual void Connect(const std::string& address) = 0;
  virtual std::string Listen() = 0;

  virtual void Send(const pull::Frame& frame) = 0;
  // REQUIRES: head.bytes is the length of `piece`. All other fields may be false.
  virtual void SendPiece(const pull::Data& head, std::string_view piece) = 0;

  // The next frame; for DATA only its head, and ReadBytes returns the piece. If no frame arrives, the test
  // fails and the result is BYE.
  virtual pull::Frame Next() = 0;
  virtual std::string ReadBytes(size_t bytes) = 0;
  // Waits until the other end closes the connection, whatever it sends before; false if it does not.
  virtual bool IsClosed() = 0;

  template <typename T>
  T NextAs() {
    const pull::Frame frame = Next();
    const T* message = std::get_if<T>(&frame);
    EXPECT_NE(message, nullptr) << "frame of type " << frame.index();
    return message != nullptr ? *message : T{};
  }
};

}  // namespace tensorcast::transport
