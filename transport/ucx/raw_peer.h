// One end of a connection over UCX that says whatever a test wants and keeps what it hears. A piece that
// comes by rendezvous is dropped.
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

  // Waits until a frame is here, or the connection is closed: whether Next has a frame.
  bool Hears();
  void SendBytes(unsigned id, std::string bytes);
  // Calls `sends`. Nothing that arrives is looked at before it returns: a rendezvous that it begins is still
  // under way when it sends what follows.
  void AtOnce(const std::function<void()>& sends);

 private:
  class Connection;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace tensorcast::transport
