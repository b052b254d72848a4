// One end of a connection that says whatever a test wants, in any order, and keeps what it hears: what the
// suite of the pull protocol speaks to both ends of a lane with. A lane's test implements it.
//
// Used by one thread. Every wait ends, with a failed test where nothing came.
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

  // Either of these is called once: as a receiver, to the address in a descriptor; or as a source, to which
  // one receiver comes by the address that is returned.
  virtual void Connect(const std::string& address) = 0;
  virtual std::string Listen() = 0;

  virtual void Send(const pull::Frame& frame) = 0;
  // `head` may lie about nothing but the length, which is the piece's.
  virtual void SendPiece(const pull::Data& head, std::string_view piece) = 0;

  // The next frame; of DATA its head, and the piece is for ReadBytes. BYE, and a failure, when there is none.
  virtual pull::Frame Next() = 0;
  virtual std::string ReadBytes(size_t bytes) = 0;
  // Whether the other end closes the connection, whatever it says before.
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
