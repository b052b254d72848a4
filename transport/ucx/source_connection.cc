#include "transport/ucx/source_connection.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "transport/registered_memory.h"

namespace tensorcast::transport {
namespace {

// A receiver may know that a request is over, and send the next one, before this source does.
constexpr size_t kLateRequests = 2;

}  // namespace

void SourceConnection::OnControl(const wire::Control& message) {
  std::visit([this](const auto& m) { On(m); }, message);
}

absl::Status SourceConnection::OnPiece(const wire::DataHeader&, ConstHostSpan) {
  return absl::InvalidArgumentError("a source was sent DATA");
}

absl::StatusOr<HostSpan> SourceConnection::OnRendezvous(const wire::DataHeader& header, uint64_t) {
  return OnPiece(header, {});
}

void SourceConnection::On(const wire::Hello& hello) {
  if (serving_ != nullptr || bye_) {
    ProtocolError("HELLO within a pull");
    return;
  }
  if (absl::Status version = wire::CheckVersion(hello); !version.ok()) {
    endpoint_->SendControl(wire::Error{.status = std::move(version)});
    return;
  }
  serving_ = source_->Find(hello.pull_id);
  if (serving_ == nullptr) {
    endpoint_->SendControl(
        wire::Error{.status = absl::NotFoundError("the source does not serve this pull (any more)")});
    return;
  }
  piece_bytes_ = source_->limits().piece_bytes;
  if (hello.max_piece_bytes > 0) piece_bytes_ = std::min<uint64_t>(piece_bytes_, hello.max_piece_bytes);
  serving_->connections.insert(this);
  if (const auto trace = TraceContext::FromTraceparent(hello.traceparent)) {
    serving_->counter.SetReceiverTrace(*trace);
  }
  endpoint_->SendControl(wire::Welcome{.max_requests = source_->limits().requests_a_pull,
                                       .max_request_bytes = source_->limits().request_bytes,
                                       .image_bytes = serving_->image_bytes});
}

absl::Status SourceConnection::CheckRequest(const wire::Request& request) const {
  if (request.offset > serving_->image_bytes || request.bytes > serving_->image_bytes - request.offset) {
    return absl::InvalidArgumentError(absl::StrCat("a request for ", request.bytes, " bytes at ",
                                                   request.offset, " of an image of ",
                                                   serving_->image_bytes));
  }
  if (request.bytes > source_->limits().request_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request for ", request.bytes, " bytes; at most ",
                                                   source_->limits().request_bytes, " were offered"));
  }
  return absl::OkStatus();
}

void SourceConnection::On(const wire::Request& request) {
  if (!active() && !bye_) return;  // it crossed the news that the pull was revoked
  if (bye_ || source_->lane() == UcxLane::kRma || requests_.contains(request.id) ||
      requests_.size() >= kLateRequests * source_->limits().requests_a_pull) {
    ProtocolError("a REQUEST that was not expected");
    return;
  }
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    endpoint_->SendControl(wire::Error{.request_id = request.id, .status = status});
    return;
  }
  serving_->counter.AddRequest();
  // By request, the bytes that are still to be sent; it is gone when they are, and when its pull has ended.
  requests_.emplace(request.id, request.bytes);
  if (serving_->in_place) {
    QueueInPlace(request);
    SendPieces();
  } else {
    reads_.push_back({request.id, request.offset, request.bytes});
    StartReads();
  }
}

void SourceConnection::On(const wire::Bye&) {
  if (bye_) {
    ProtocolError("BYE twice");
    return;
  }
  bye_ = true;
  StopServing();
  AnswerBye();
}

void SourceConnection::QueueInPlace(const wire::Request& request) {
  uint64_t offset = request.offset;
  for (const ConstHostSpan& slice : SliceSegments(serving_->segments, request.offset, request.bytes)) {
    QueuePieces(request.id, offset, {slice, nullptr});
    offset += slice.size();
  }
}

void SourceConnection::QueuePieces(uint64_t request_id, uint64_t offset, const ServedPiece& read) {
  for (ConstHostSpan rest = read.bytes; !rest.empty();) {
    const ConstHostSpan piece = rest.first(std::min<uint64_t>(rest.size(), piece_bytes_));
    pieces_.push_back({{.request_id = request_id, .offset = offset}, {piece, read.hold}});
    rest = rest.subspan(piece.size());
    offset += piece.size();
  }
}

// On the serving threads, since a read may block on a disk or a buffer; only so many at a time, so that one
// pull does not take all buffers.
void SourceConnection::StartReads() {
  while (reading_ < source_->limits().reads_a_pull && !reads_.empty()) {
    const Read read = reads_.front();
    reads_.pop_front();
    ++reading_;
    serving_->AddBusy(1);
    source_->threads().Submit([self = shared_from_this(), serving = serving_, read]() mutable {
      absl::StatusOr<ServedPiece> piece = serving->image->Read(read.offset, read.bytes);
      UcxWorker& worker = self->source_->worker();
      worker.Post([self = std::move(self), serving = std::move(serving), read,
                   piece = std::move(piece)]() mutable { self->ReadDone(serving, read, std::move(piece)); });
    });
  }
}

void SourceConnection::ReadDone(const std::shared_ptr<SourceServing>& serving, Read read,
                                absl::StatusOr<ServedPiece> piece) {
  --reading_;
  const bool wanted = active() && serving_ == serving && requests_.contains(read.request_id);
  if (wanted && piece.ok() && (piece->bytes.empty() || piece->bytes.size() > read.bytes)) {
    piece = absl::InternalError("a served image read more bytes than it was asked for, or none");
  }
  if (wanted && !piece.ok()) {
    EndRequest(read.request_id, piece.status());
  } else if (wanted) {
    const uint64_t bytes = piece->bytes.size();
    QueuePieces(read.request_id, read.offset, *piece);
    SendPieces();
    // A read may give less than was asked for (a buffer's worth): the rest is next, before other requests.
    if (bytes < read.bytes) reads_.push_front({read.request_id, read.offset + bytes, read.bytes - bytes});
  }
  // Releases a piece that is sent or unwanted before the serving may count as idle.
  piece = absl::CancelledError();
  serving->AddBusy(-1);
  if (active()) StartReads();
  AnswerBye();
}

void SourceConnection::SendPieces() {
  while (sending_ < source_->limits().sends_a_pull && !pieces_.empty()) {
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    ++sending_;
    serving_->AddBusy(1);
    const uint64_t bytes = piece.piece.bytes.size();
    endpoint_->SendData(piece.header, std::move(piece.piece),
                        [self = shared_from_this(), serving = serving_, id = piece.header.request_id,
                         bytes](const absl::Status& status) {
                          if (status.ok()) serving->counter.AddBytes(bytes);
                          // In a task of its own: a send that completes at once must not recurse.
                          self->source_->worker().Post([self, serving, id, bytes, status] {
                            self->PieceSent(id, bytes, status);
                            serving->AddBusy(-1);
                          });
                        });
  }
}

void SourceConnection::PieceSent(uint64_t request_id, uint64_t bytes, const absl::Status& status) {
  --sending_;
  if (!status.ok() && !closing_) endpoint_->Fail(status);
  if (auto it = requests_.find(request_id); it != requests_.end() && (it->second -= bytes) == 0) {
    requests_.erase(it);
  }
  // A stopped pull left its serving to the sends that were under way; the last of them gives it back.
  if (stopped_ && sending_ == 0) {
    LeaveServing();
  } else if (active() && status.ok()) {
    SendPieces();
  }
  AnswerBye();
}

void SourceConnection::EndRequest(uint64_t request_id, const absl::Status& status) {
  requests_.erase(request_id);
  std::erase_if(pieces_, [&](const Piece& piece) { return piece.header.request_id == request_id; });
  endpoint_->SendControl(wire::Error{.request_id = request_id, .status = status});
}

void SourceConnection::StopServing() {
  requests_.clear();
  pieces_.clear();
  reads_.clear();
  stopped_ = serving_ != nullptr;
  if (stopped_ && sending_ == 0) LeaveServing();
}

void SourceConnection::LeaveServing() {
  serving_->connections.erase(this);
  serving_ = nullptr;
  stopped_ = false;
}

void SourceConnection::AnswerBye() {
  // After this the receiver may begin its next pull on this connection.
  if (bye_ && sending_ == 0 && reading_ == 0 && !closing_) {
    bye_ = false;
    endpoint_->SendControl(wire::Bye{});
  }
}

void SourceConnection::ServingRevoked() {
  // One-sided reads are not seen here: only a closed connection ends them for sure.
  if (sending_ > 0 || source_->lane() == UcxLane::kRma) {
    Close();
    return;
  }
  StopServing();
  endpoint_->SendControl(wire::Error{.status = absl::NotFoundError("the source revoked the pull")});
}

void SourceConnection::Close() {
  if (closing_) return;
  closing_ = true;
  const std::shared_ptr<SourceServing> serving = serving_;
  if (serving != nullptr) serving->AddBusy(1);
  StopServing();
  endpoint_->Close([self = shared_from_this(), serving] {
    self->source_->Forget(self.get());
    if (serving != nullptr) serving->AddBusy(-1);
  });
}

void SourceConnection::OnFailed(const absl::Status& status) {
  if (active()) LOG(WARNING) << "a receiver's pull ended early: " << status;
  Close();
}

void SourceConnection::ProtocolError(std::string_view what) {
  endpoint_->Fail(absl::InvalidArgumentError(absl::StrCat("the receiver broke the pull protocol: ", what)));
}

}  // namespace tensorcast::transport
