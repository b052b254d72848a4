// A receiver that speaks the pull protocol in any order, with any fields, in any pieces, to a real source
// connection, and takes its answers as slowly as it likes. What the source says is held against what it was
// asked: nothing but that, each byte the image's, each request answered to its end, nothing after the end. Of
// an image that fills meanwhile: nothing but what is there, and a receiver that asks is told all of it.
//
// Instead of a socket the connection has memory, so that each read and each write is as long as the input
// says; its loop and its serving thread are real.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/check.h"
#include "absl/log/globals.h"
#include "absl/synchronization/notification.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/program.h"
#include "transport/pull/source_connection.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/testing/test_image.h"

namespace tensorcast::fuzz {
namespace {

using namespace transport;        // NOLINT(google-build-using-namespace): the fuzzed layer
using namespace transport::pull;  // NOLINT(google-build-using-namespace)
using namespace transport::tcp;   // NOLINT(google-build-using-namespace)

constexpr uint64_t kImageBytes = 100000;
constexpr uint64_t kAnyBytes = uint64_t{1} << 40;
// As many as one connection may hold: it is not to wait for another while its receiver takes nothing.
constexpr uint64_t kStagingBytes = 3 << 10;
constexpr int kStagingSlots = 3;
// Small, so that a short program reaches them.
constexpr SourceLimits kLimits{.requests = 4,
                               .request_bytes = 20000,
                               .piece_bytes = 200,
                               .reads = 2,
                               .announce_interval = absl::ZeroDuration()};
constexpr uint64_t kChunkBytes = 4096;

// The model of one conversation. Said follows the receiver's frames as the source reads them, by the rules of
// the protocol; Heard checks each byte of the source against it. Used by the loop's thread alone.
class Conversation {
 public:
  // Null: of an image that does not fill.
  explicit Conversation(std::shared_ptr<const Availability> availability)
      : availability_(std::move(availability)),
        told_(std::make_unique<Availability>(kImageBytes, kChunkBytes)) {}

  // So many bytes reached the source.
  void Said(std::string_view bytes) {
    said_ += bytes;
    while (!over_) {
      const auto frame = DecodeFrame(said_);
      if (!frame.ok()) over_ = true;
      if (!frame.ok() || !frame->has_value()) return;
      said_.erase(0, (*frame)->bytes);
      Take((*frame)->frame);
    }
  }
  // The source is to close the connection, and may not have read what followed.
  bool over() const { return over_; }

  // What the source says, in any pieces.
  void Heard(std::string_view bytes) {
    while (!bytes.empty()) {
      if (piece_left_ > 0) {
        const size_t take = std::min<uint64_t>(piece_left_, bytes.size());
        CHECK(HoldsPattern({reinterpret_cast<const std::byte*>(bytes.data()), take}, piece_offset_))
            << "bytes that are not the image's";
        piece_left_ -= take;
        piece_offset_ += take;
        bytes.remove_prefix(take);
        continue;
      }
      heard_.push_back(bytes.front());
      bytes.remove_prefix(1);
      const auto frame = DecodeFrame(heard_);
      CHECK_OK(frame.status()) << "the source sent what is not a frame";
      if (!frame->has_value()) continue;
      heard_.clear();
      CHECK(!told_end_) << "a frame after the one that ends the pull";
      if (const auto* data = std::get_if<Data>(&(*frame)->frame)) {
        On(*data);
      } else if (const auto* error = std::get_if<Error>(&(*frame)->frame)) {
        On(*error);
      } else if (const auto* not_here = std::get_if<NotHere>(&(*frame)->frame)) {
        On(*not_here);
      } else if (const auto* have = std::get_if<Have>(&(*frame)->frame)) {
        On(*have);
      } else {
        // The answer to a BYE, or to the end of the connection.
        if (std::holds_alternative<Bye>((*frame)->frame)) {
          told_end_ = true;
          continue;
        }
        const auto* welcome = std::get_if<Welcome>(&(*frame)->frame);
        CHECK(welcome != nullptr && !welcomed_) << "a frame that no source sends";
        CHECK_EQ(welcome->image_bytes, kImageBytes);
        CHECK_EQ(welcome->chunk_bytes, availability_ == nullptr ? 0 : kChunkBytes);
        welcomed_ = true;
      }
    }
  }
  // Where the source has had all the room and time it wants.
  void ExpectAnswered() const {
    CHECK(heard_.empty() && piece_left_ == 0);
    if (failed()) CHECK(told_end_) << "the image failed, and the source did not say so";
    if (told_end_) return;
    CHECK(welcomed_);
    if (following_) CHECK(told_->Words() == availability_->Words()) << "not told of what is there";
    for (const auto& [id, asked] : asked_) CHECK_EQ(asked.left, 0u) << "REQUEST " << id;
  }
  bool failed() const {
    return availability_ != nullptr && availability_->ended() && !availability_->end().ok();
  }

 private:
  struct Asked {
    uint64_t next = 0;
    uint64_t left = 0;
    bool here = true;
  };

  void Take(const Frame& frame) {
    if (const auto* request = std::get_if<Request>(&frame)) {
      if (request->id <= last_id_) over_ = true;
      if (over_) return;
      last_id_ = request->id;
      // The source reads it now.
      const bool here = availability_ == nullptr || availability_->HasRange(request->offset, request->bytes);
      asked_[request->id] = {.next = request->offset, .left = request->bytes, .here = here};
    } else if (std::holds_alternative<Follow>(frame)) {
      over_ = availability_ == nullptr || following_;
      following_ = !over_;
    } else if (const auto* cancel = std::get_if<Cancel>(&frame)) {
      over_ = cancel->id > last_id_;
    } else {
      over_ = true;
    }
  }
  void On(const Data& data) {
    CHECK(welcomed_);
    const auto asked = asked_.find(data.request_id);
    CHECK(asked != asked_.end()) << "DATA of REQUEST " << data.request_id << ", which was not made";
    CHECK(asked->second.here) << "DATA of what was not there";
    CHECK_EQ(data.offset, asked->second.next);
    CHECK_LE(data.bytes, asked->second.left);
    CHECK(data.offset + data.bytes <= kImageBytes && data.bytes <= kLimits.piece_bytes);
    asked->second.next += data.bytes;
    asked->second.left -= data.bytes;
    piece_offset_ = data.offset;
    piece_left_ = data.bytes;
  }
  void On(const Error& error) {
    if (error.request_id == kWholePull) {
      told_end_ = true;
      return;
    }
    const auto asked = asked_.find(error.request_id);
    CHECK(asked != asked_.end() && asked->second.left > 0) << "an ERROR for REQUEST " << error.request_id;
    asked->second.left = 0;
  }
  void On(const NotHere& not_here) {
    const auto asked = asked_.find(not_here.id);
    CHECK(asked != asked_.end() && asked->second.left > 0 && !asked->second.here)
        << "a NOT_HERE for REQUEST " << not_here.id;
    asked->second.left = 0;
  }
  void On(const Have& have) {
    CHECK(following_ && have.first + have.words.size() * kHaveWordBits < told_->chunks() + kHaveWordBits);
    const uint32_t before = told_->count();
    told_->AddWords(have.first, have.words);
    CHECK(told_->count() > before) << "a HAVE without news";
    for (uint32_t chunk = 0; chunk < told_->chunks(); ++chunk) {
      CHECK(!told_->Has(chunk) || availability_->Has(chunk)) << "told of what is not there";
    }
  }

  const std::shared_ptr<const Availability> availability_;
  const std::unique_ptr<Availability> told_;
  bool following_ = false;
  std::string said_;
  uint64_t last_id_ = 0;
  bool over_ = false;
  std::map<uint64_t, Asked> asked_;
  std::string heard_;
  bool welcomed_ = false;
  bool told_end_ = false;
  uint64_t piece_offset_ = 0;
  uint64_t piece_left_ = 0;
};

// What is on its way between the two, and outlives the stream, which closes when the source is done with it.
struct Wire {
  std::string to_source;
  bool receiver_gone = false;
  size_t read_bytes = 0;  // that the source is given at a time; 0: all
  uint64_t room = 0;      // for what the source writes
  bool closed = false;
  uint32_t wanted = 0;
  Conversation conversation;
};

class MemoryStream final : public ByteStream {
 public:
  MemoryStream(int fd, Wire* wire) : fd_(fd), wire_(*wire) {}
  ~MemoryStream() override { wire_.closed = true; }

  int fd() const override { return fd_; }
  uint32_t Events(bool has_output) const override {
    wire_.wanted = has_output ? EPOLLIN | EPOLLOUT : EPOLLIN;
    return wire_.wanted;
  }
  bool has_buffered() const override { return false; }
  bool has_unsent() const override { return false; }
  const std::string& peer() const override { return peer_; }
  absl::Status CheckPeer() const override { return absl::OkStatus(); }

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    if (wire_.to_source.empty()) {
      if (wire_.receiver_gone) return absl::UnavailableError("the receiver closed the connection");
      return 0;
    }
    size_t left =
        wire_.read_bytes == 0 ? wire_.to_source.size() : std::min(wire_.read_bytes, wire_.to_source.size());
    size_t read = 0;
    for (const iovec& part : into) {
      const size_t take = std::min(left, part.iov_len);
      std::memcpy(part.iov_base, wire_.to_source.data() + read, take);
      read += take;
      left -= take;
    }
    CHECK_GT(read, 0u) << "a read without room";
    wire_.conversation.Said(std::string_view(wire_.to_source).substr(0, read));
    wire_.to_source.erase(0, read);
    return read;
  }
  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    if (wire_.receiver_gone) return absl::UnavailableError("the receiver closed the connection");
    size_t written = 0;
    for (const iovec& part : from) {
      const size_t take = std::min<uint64_t>(wire_.room, part.iov_len);
      wire_.conversation.Heard({static_cast<const char*>(part.iov_base), take});
      wire_.room -= take;
      written += take;
    }
    return written;
  }

 private:
  const int fd_;
  Wire& wire_;
  const std::string peer_;
};

// What all sequences share.
class Source {
 public:
  Source()
      : memory_(kImageBytes + 1000), staging_(kStagingBytes), loop_(*IoLoop::Start("fuzz")), threads_(1) {
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
    CHECK_EQ(pipe(pipe_), 0);
    // In three places, with a gap in front of the last.
    image_ = {memory_.span(0, 999), memory_.span(999, 40001), memory_.span(42000, kImageBytes - 41000)};
    WritePattern(image_);
  }

  void Serve(Program program) {
    // The low three bits: 0 to 4 an image in place, 5 one in place that fills, 6 a staged one that fills, 7 a
    // staged one. The high five bits: how many bytes the source gets at a time.
    const uint8_t kind = program.Byte();
    const bool in_place = (kind & 7) < 6;
    const bool fills = (kind & 7) == 5 || (kind & 7) == 6;
    const auto availability = fills ? std::make_shared<Availability>(kImageBytes, kChunkBytes) : nullptr;
    Wire wire{.to_source = {},
              .read_bytes = static_cast<size_t>(kind >> 3),
              .conversation = Conversation(availability)};
    const auto serving =
        std::make_shared<SourceServing>(PullId{}, NewImage(in_place, availability), /*receiver=*/"");
    const auto connection = std::make_shared<SourceConnection>(&loop_->queue(), &threads_, kLimits, serving);
    CHECK_OK(serving->Join(connection));
    const auto channel = std::make_shared<TcpChannel>(loop_.get(), /*send_limit=*/nullptr,
                                                      /*receive_limit=*/nullptr);
    const auto start = [&] {
      channel->Open(std::make_unique<MemoryStream>(pipe_[0], &wire), connection.get());
      connection->Start(channel);
    };
    // An image in place that is whole needs only the loop: the whole sequence is one task of it.
    if (in_place && !fills) {
      loop_->Run([&] {
        start();
        while (!program.AtEnd()) Step(program, wire, *channel, *connection);
        Finish(wire, *channel, *connection);
      });
    } else {
      loop_->Run(start);
      while (!program.AtEnd()) {
        if (fills) FillSome(program, *availability);
        loop_->Run([&] { Step(program, wire, *channel, *connection); });
        AwaitReads();
      }
      wire.room = kAnyBytes;
      // A staged image is read by a serving thread, which posts what it has read to the loop. So what can
      // move is moved, and the reads are waited for, until neither changes anything.
      for (bool moved = true; moved;) {
        const uint64_t room = wire.room;
        loop_->Run([&] { Move(wire, *channel); });
        AwaitReads();
        moved = wire.room != room || !wire.to_source.empty();
        if (wire.closed) break;
      }
      loop_->Run([&] { Finish(wire, *channel, *connection); });
    }
    serving->Revoke();  // which waits for threads that still read
    CHECK(wire.closed) << "revoked, and its connection is open";
    loop_->Run([] {});  // what was posted for it is over, and it is only ours
  }

 private:
  std::shared_ptr<ServedImage> NewImage(bool in_place,
                                        const std::shared_ptr<const Availability>& availability) {
    if (in_place) return std::make_shared<InPlaceImage>(image_, availability);
    return std::make_shared<StagedImage>(
        kImageBytes, staging_.span(0, kStagingBytes), kStagingSlots,
        [this, availability](uint64_t offset) {
          ++reads_;
          CHECK(availability == nullptr || availability->HasRange(offset, 1))
              << "read where nothing is there";
          if (offset % 1000 != 777) return absl::OkStatus();
          return absl::DataLossError("this part cannot be read");
        },
        availability);
  }

  // What an ingest does between two steps of the receiver; the connection knows of it when this returns.
  void FillSome(Program& program, Availability& availability) {
    const uint8_t what = program.Byte();
    if (what < 64) {
      availability.Add(what % availability.chunks());
    } else if (what < 80) {
      for (uint32_t chunk = what % 5; chunk < availability.chunks(); ++chunk) availability.Add(chunk);
    } else if (what == 80) {
      availability.End(absl::AbortedError("the ingest was given up"));
    } else if (what == 81 && availability.complete()) {
      availability.End(absl::OkStatus());
    }
    loop_->Run([] {});
  }

  // One thing that a receiver may do.
  static void Step(Program& program, Wire& wire, TcpChannel& channel, SourceConnection& connection) {
    std::string& out = wire.to_source;
    switch (program.Byte() % 16) {
      case 0:
        out += EncodeFrame(Hello{.traceparent = program.Bytes(program.Byte())});
        break;
      case 1:
        out += EncodeFrame(Cancel{.id = program.Number(0)});
        break;
      case 2:
        out += EncodeFrame(Bye{});
        break;
      case 3:
        out += EncodeFrame(Data{
            .request_id = program.Byte(), .offset = program.Number(kImageBytes), .bytes = program.Byte()});
        break;
      case 4:
        out += EncodeFrame(Welcome{.max_requests = 1, .max_request_bytes = 1});
        break;
      case 5:
        out += EncodeFrame(Error{.request_id = program.Byte(), .status = absl::InternalError("")});
        break;
      case 6:
        out += program.Bytes(program.Byte());
        break;
      case 7: {
        // Part of a frame, and the next step is what follows.
        const std::string frame = EncodeFrame(Request{.id = 200, .offset = 0, .bytes = 1});
        out += frame.substr(0, program.Byte() % frame.size());
        break;
      }
      case 8:
        wire.receiver_gone = true;
        break;
      case 9:
        wire.room += program.Number(kLimits.piece_bytes) % (1 << 20);
        break;
      case 10:
        wire.room += program.Byte();
        break;
      case 11:
        wire.read_bytes = program.Byte();
        break;
      case 12:
        connection.End(absl::NotFoundError("the source revoked the pull"));
        break;
      case 13:
        out += EncodeFrame(Cancel{.id = program.Byte()});
        break;
      case 14: {
        const uint8_t which = program.Byte();
        if (which % 4 != 0) {
          out += EncodeFrame(Follow{});
        } else if (which % 8 == 0) {
          out += EncodeFrame(NotHere{.id = 1});
        } else {
          out += EncodeFrame(Have{.words = {which}});
        }
        break;
      }
      default:
        out += EncodeFrame(Request{.id = program.Byte(),
                                   .offset = program.Number(kImageBytes),
                                   .bytes = program.Number(kLimits.request_bytes)});
    }
    Move(wire, channel);
  }
  // As epoll would have it.
  static void Move(Wire& wire, TcpChannel& channel) {
    while (!wire.closed && (!wire.to_source.empty() || wire.receiver_gone)) channel.OnReady(EPOLLIN);
    while (!wire.closed && (wire.wanted & EPOLLOUT) != 0 && wire.room > 0) {
      const uint64_t room = wire.room;
      channel.OnReady(EPOLLOUT);
      CHECK(wire.closed || wire.room < room || (wire.wanted & EPOLLOUT) == 0)
          << "waits for room that there is";
    }
  }
  static void Finish(Wire& wire, TcpChannel& channel, SourceConnection& connection) {
    wire.room = kAnyBytes;
    Move(wire, channel);
    if (!wire.closed) {
      // Once it has told the receiver of the end, it does not listen any more.
      CHECK(!wire.conversation.over() || wire.conversation.failed())
          << "the receiver said what ends a connection, and it is open";
      wire.conversation.ExpectAnswered();
    }
    connection.End(absl::NotFoundError("the source revoked the pull"));
    CHECK(wire.closed);
  }
  // Until no read is under way and none follows.
  void AwaitReads() {
    for (int before = -1; before != reads_;) {
      before = reads_;
      // There is one serving thread, so this task comes after the reads that were queued before it. A read
      // may have led to another: hence the loop.
      absl::Notification done;
      threads_.Submit([&] { done.Notify(); });
      done.WaitForNotification();
      loop_->Run([] {});
    }
  }

  TestMemory memory_;
  TestMemory staging_;
  int pipe_[2];  // its reading end, on which nothing happens, is what the loop watches
  std::unique_ptr<IoLoop> loop_;
  ServingThreads threads_;
  std::atomic<int> reads_ = 0;
  std::vector<HostSpan> image_;
};

}  // namespace

void TestOneInput(std::string_view input) {
  static auto* const source = new Source;
  source->Serve(Program(input));
}

std::vector<std::string> Seeds() {
  const std::string room("\x09\x05\xff\xff", 4), some_room("\x0a\x80", 2);
  const auto request = [](char id, char offset, char bytes) {
    return std::string({'\x0f', id, '\0', offset, '\1', bytes});
  };
  std::vector<std::string> seeds;
  for (const char* const kind : {"\x10", "\x17", "\x88", "\x0f"}) {
    const std::string begin(kind);
    seeds.push_back(begin + request(1, 7, 9) + room + request(2, 0, 3) + some_room + "\x0d\x02" + "\x02");
    seeds.push_back(begin + room + request(1, 0, 0) + "\x0c");
    seeds.push_back(begin + request(1, 0, 0) + request(2, 0, 0) + request(3, 0, 0) + some_room + "\x08");
    seeds.push_back(begin + request(2, 0, 0) + request(1, 0, 0));
    seeds.push_back(begin + "\x06\x04gar!" + some_room);
    // A byte more than a piece.
    seeds.push_back(begin + std::string("\x0f\1\0\7\0\xc9", 6) + room);
  }
  // Of images that fill, in place and not: in front of each step a byte says what comes.
  for (const char* const kind : {"\x05", "\x06", "\x8d", "\x0e"}) {
    const std::string begin(kind), follow("\x0e\x01"), nothing("\xff"), first(1, '\0'), all("\x46"),
        failure("\x50"), ready("\x51");
    seeds.push_back(begin + first + follow + nothing + request(1, 7, 9) + "\x03" + room + nothing +
                    request(2, 100, 3) + all + some_room + ready + some_room);
    seeds.push_back(begin + first + follow + "\x05" + room + "\x06" + some_room + "\x07" + follow);
    seeds.push_back(begin + all + request(1, 0, 0) + failure + room + nothing + request(2, 0, 9));
    seeds.push_back(begin + all + request(1, 0, 0) + nothing + some_room + failure + room + nothing + follow);
    seeds.push_back(begin + first + room + nothing + request(1, 0, 9) + nothing + std::string("\x0e\x04"));
  }
  return seeds;
}

}  // namespace tensorcast::fuzz
