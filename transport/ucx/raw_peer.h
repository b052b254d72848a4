// One end of a UCX connection, for tests: sends any frames, and stores the frames that it receives. It drops
// pieces that arrive by rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "transport/pull/wire.h"
#include "transport/testing/protocol_peer.h"

namespace tensorcast::transport {

class RawPeer : public ProtocolPeer {
 public:
  RawPeer();
  ~RawPeer() override;

  void Connect(const std::string& address) override;
  std::string Listen() override;
  void Send(const pull::Frame& frame) override;
  void SendPiece(const pull::Data& head, std::string_view piece) override;
  pull::Frame Next() override;
  std::string ReadBytes(size_t bytes) override;
  bool IsClosed() override;

  // Waits until a frame has arrived or the connection is closed; true if Next has a frame.
  bool Hears();
  // Sends an active message with this id and header.
  void SendBytes(unsigned id, std::string bytes);
  // Calls `sends` on the progress thread. Arrivals are handled only after `sends` returns, so a rendezvous
  // that `sends` begins is still in flight when `sends` sends the next messages.
  void AtOnce(const std::function<void()>& sends);

 private:
  class Connection;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace tensorcast::transport
