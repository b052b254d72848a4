// One receiver's connection to this source: at most one pull at a time, and between pulls idle. Private to
// this folder; the progress thread's alone.
//
//   idle --HELLO--> serving --BYE, revoked--> stopped --sends have ended--> idle
//                      |                         |    (BYE is answered once reads have ended too)
//                      '--error, revoked while --'--> closing --closed by force--> gone
//                         bytes are under way
//
// A serving counts as busy (SourceServing::AddBusy) for each send and each read of it, and while a connection
// that served it closes: so ~Serving, which waits for 0, returns when nothing reads the image any more. A
// read that ends after its pull did finds its request gone, and drops what it read.
#pragma once

#include <deque>
#include <memory>

#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_source.h"

namespace tensorcast::transport {

class SourceConnection : public EndpointOwner, public std::enable_shared_from_this<SourceConnection> {
 public:
  SourceConnection(UcxSource* source, std::shared_ptr<UcxEndpoint> endpoint)
      : source_(source), endpoint_(std::move(endpoint)) {
    endpoint_->set_owner(this);
  }

  // The serving is being revoked: sends nothing more. Closes by force when bytes may be on their way.
  void ServingRevoked();
  void Close();

  void OnControl(const wire::Control& message) override;
  absl::Status OnPiece(const wire::DataHeader& header, ConstHostSpan piece) override;
  absl::StatusOr<HostSpan> OnRendezvous(const wire::DataHeader& header, uint64_t bytes) override;
  void OnRendezvousReceived(const wire::DataHeader&, uint64_t, const absl::Status&) override {}
  void OnFailed(const absl::Status& status) override;

 private:
  struct Piece {
    wire::DataHeader header;
    ServedPiece piece;
  };
  struct Read {
    uint64_t request_id;
    uint64_t offset;
    uint64_t bytes;
  };

  void On(const wire::Hello& hello);
  void On(const wire::Request& request);
  void On(const wire::Bye&);
  void On(const wire::Welcome&) { ProtocolError("a source was sent WELCOME"); }
  void On(const wire::Error&) { ProtocolError("a source was sent ERROR"); }

  absl::Status CheckRequest(const wire::Request& request) const;
  void QueueInPlace(const wire::Request& request);
  // Queues what was read at `offset`, in pieces that the receiver can take.
  void QueuePieces(uint64_t request_id, uint64_t offset, const ServedPiece& read);
  void StartReads();
  void ReadDone(const std::shared_ptr<SourceServing>& serving, Read read, absl::StatusOr<ServedPiece> piece);
  void SendPieces();
  void PieceSent(uint64_t request_id, uint64_t bytes, const absl::Status& status);
  void EndRequest(uint64_t request_id, const absl::Status& status);
  bool active() const { return serving_ != nullptr && !stopped_; }
  // Drops what was queued; the serving is left once no send of it is in flight.
  void StopServing();
  void LeaveServing();
  // Once nothing is in flight.
  void AnswerBye();
  void ProtocolError(std::string_view what);

  UcxSource* const source_;
  const std::shared_ptr<UcxEndpoint> endpoint_;
  std::shared_ptr<SourceServing> serving_;            // nullptr: idle
  bool stopped_ = false;                              // of serving_, only sends in flight are left
  absl::flat_hash_map<uint64_t, uint64_t> requests_;  // bytes of each that are still to be sent
  std::deque<Piece> pieces_;
  std::deque<Read> reads_;
  uint64_t piece_bytes_ = 0;  // of the longest piece, as both sides can
  int sending_ = 0;
  int reading_ = 0;
  bool bye_ = false;
  bool closing_ = false;
};

}  // namespace tensorcast::transport
