// A source that speaks the pull protocol in any order, with any fields, in any pieces, to a real pull over a
// real connection. Whatever it says, each fetch completes once, nothing is written outside its destination or
// after its completion, a digest is that of the bytes that came, and a source that does what it should is
// understood. Fetches are taken back in the middle of it all. Of an image that fills the pull knows what the
// source said, and how that ended.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/globals.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "core/replica/availability.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/program.h"
#include "transport/pull/wire.h"
#include "transport/serving.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/test_image.h"

namespace tensorcast::fuzz {
namespace {

using namespace transport;        // NOLINT(google-build-using-namespace): the fuzzed layer
using namespace transport::pull;  // NOLINT(google-build-using-namespace)
using namespace transport::tcp;   // NOLINT(google-build-using-namespace)

constexpr uint64_t kImageBytes = 100000;
constexpr uint64_t kChunkBytes = 4096;
constexpr int kMaxFetches = 3;
constexpr uint64_t kMaxFetchBytes = 20000;
constexpr uint64_t kGapBytes = 1000;  // in front of each destination, and behind the last
constexpr std::byte kUntouched{0xee};
constexpr std::byte kGivenBack{0xdd};  // the destination of a fetch that failed, at once
// Whatever the machine's load; a wait that is longer never ends.
constexpr int kHangMs = 60000;
// A source that lied waits once for so long for one request more; where it comes later, the sequence is
// another one.
constexpr int kPatienceMs = 5;
// Of a message that is sent in pieces: enough for a head of single bytes and the beginning of what follows.
constexpr int kMaxPieces = 40;

struct FetchPlan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What a program says before it is the source's turn.
struct Plan {
  explicit Plan(Program& program) {
    const uint8_t byte = program.Byte();
    fills = (byte & 0x20) != 0;
    hasty = (byte & 0x40) != 0;
    finish = (byte & 0x80) != 0;
    fetches.resize(byte % (kMaxFetches + 1));
    for (FetchPlan& fetch : fetches) {
      fetch.offset = program.Below(kImageBytes - kMaxFetchBytes);
      fetch.bytes = program.Below(kMaxFetchBytes + 1);
    }
  }
  std::vector<FetchPlan> fetches;
  bool fills;   // the image does, where the source is honest
  bool hasty;   // the pull is destroyed while its fetches are pending
  bool finish;  // the source answers in the end what is left
};

// The pull, while there is one with its fetches, for the thread that takes one back. Thread-safe.
class RunningPull {
 public:
  void Set(Pull* pull, std::vector<FetchId> fetches) {
    absl::MutexLock lock(&mutex_);
    pull_ = pull;
    fetches_ = std::move(fetches);
  }
  // False when there is none.
  // The lock is held during the call, so that Set(nullptr) waits for it before the pull is destroyed.
  bool TakeBack(size_t fetch) {
    absl::MutexLock lock(&mutex_);
    if (pull_ == nullptr || fetch >= fetches_.size()) return false;
    pull_->CancelFetch(fetches_[fetch]);
    return true;
  }

 private:
  absl::Mutex mutex_;
  Pull* pull_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<FetchId> fetches_ ABSL_GUARDED_BY(mutex_);
};

// One source, on its own thread. It waits for HELLO, mostly answers WELCOME, and then makes the program's
// steps. It is honest until a step that the protocol does not allow, and the checks at the end are stricter
// of an honest one. An honest source that is to finish then answers all that it is asked. Any other ends its
// half of the connection and reads until the receiver goes.
class LyingSource {
 public:
  LyingSource(UniqueFd socket, Program program, const Plan& plan, RunningPull* pull)
      : socket_(std::move(socket)),
        program_(program),
        plan_(plan),
        pull_(*pull),
        said_to_have_(kImageBytes, kChunkBytes) {
    for (const FetchPlan& fetch : plan.fetches) due_ += fetch.bytes;
  }

  void Speak() {
    while (!greeted_ && Receive(kHangMs)) {
    }
    honest_ = program_.Byte() % 4 != 0;
    if (honest_) {
      Welcome welcome = kWelcome;
      if (plan_.fills) welcome.chunk_bytes = kChunkBytes;
      Send(welcome);
    }
    patient_ = honest_;
    while (!program_.AtEnd() && open_) Step();
    honest_ = honest_ && plan_.finish;
    if (!socket_) return;
    // What was sent arrives before the end does.
    if (!honest_) shutdown(socket_.get(), SHUT_WR);
    do {
      while (honest_ && Answer(kMaxPieceBytes)) {
      }
    } while (open_ && Receive(kHangMs));
  }
  // It did nothing that a source does not, and answered everything.
  bool honest() const { return honest_; }
  bool flipped() const { return flipped_; }
  // It refused requests for what it never announced.
  bool refused() const { return refused_; }
  bool taken_back() const { return taken_back_; }
  // All that it announced, if it was understood.
  const Availability& said_to_have() const { return said_to_have_; }

 private:
  static constexpr Welcome kWelcome = {
      .max_requests = 3, .max_request_bytes = 7000, .image_bytes = kImageBytes};
  struct Asked {
    uint64_t next = 0;
    uint64_t left = 0;
    bool whole = true;  // nothing of it was sent
  };

  void Step() {
    const uint8_t kind = program_.Byte() % 16;
    if (kind < 5) {
      Answer(1 + program_.Below(8000));
      return;
    }
    if (kind == 5) {
      const uint8_t what = program_.Byte();
      if (honest_ && plan_.fills && what < 192) {
        Announce(what);
      } else if (honest_ && plan_.fills && what < 224) {
        RefuseOne();
      } else {
        honest_ = false;
        SendAnyNews(what);
      }
      return;
    }
    if (kind == 6) {
      send_bytes_ = program_.Byte();
      return;
    }
    if (kind == 7) {
      const uint8_t which = program_.Byte();
      flip_next_ = which % 2 == 0;
      if (!flip_next_ && pull_.TakeBack(which / 2)) taken_back_ = true;
      return;
    }
    honest_ = false;
    switch (kind) {
      case 8:
        SendAnyData();
        break;
      case 9:
        Send(Error{.request_id = program_.Below(8),
                   .status = absl::Status(static_cast<absl::StatusCode>(1 + program_.Byte() % 16), "no")});
        break;
      case 10:
        patient_ = asked_.empty();  // it may be the first
        Send(Welcome{.version = program_.Byte(),
                     .max_requests = static_cast<uint32_t>(program_.Number(1)),
                     .max_request_bytes = 1000 + program_.Below(256),
                     .image_bytes = program_.Byte() % 2 == 0 ? kImageBytes : program_.Number(kImageBytes),
                     .chunk_bytes = program_.Byte() % 4 == 0 ? program_.Number(kChunkBytes) : kChunkBytes});
        break;
      case 11:
        Send(Hello{});
        if (aligned_) ExpectClosed();
        break;
      case 12:
        Send(Request{.id = 1u + program_.Byte(), .offset = 0, .bytes = 1});
        if (aligned_) ExpectClosed();
        break;
      case 13:
        SendBytes(program_.Bytes(program_.Byte()));
        aligned_ = false;
        break;
      case 14: {
        const std::string frame = EncodeFrame(Data{.request_id = 1, .offset = NextOffset(), .bytes = 100});
        SendBytes(frame.substr(0, program_.Byte() % frame.size()));
        aligned_ = false;
        break;
      }
      default: {
        const linger at_once = {.l_onoff = 1, .l_linger = 0};
        setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        socket_ = UniqueFd();
        open_ = false;
      }
    }
  }

  // What an honest source may say of an image that fills.
  void Announce(uint8_t what) {
    const uint64_t all = (uint64_t{1} << said_to_have_.chunks()) - 1;
    const Have have{.words = {what < 8 ? all : uint64_t{what} << what % 32 & all}};
    // Only a receiver that asks is told.
    while (open_ && !followed_ && Receive(kHangMs)) {
    }
    said_to_have_.AddWords(have.first, have.words);
    Send(have);
  }
  // The first request that is for what was not announced.
  void RefuseOne() {
    while (open_ && Receive(0)) {
    }
    const auto asked = std::ranges::find_if(asked_, [this](const auto& one) {
      return one.second.whole && !said_to_have_.HasRange(one.second.next, one.second.left);
    });
    if (asked == asked_.end()) return;
    Send(NotHere{.id = asked->first});
    asked_.erase(asked);
    refused_ = true;
  }
  // What is right now and then.
  void SendAnyNews(uint8_t what) {
    if (what % 4 == 0) {
      Send(NotHere{.id = program_.Below(8) + 1});
      return;
    }
    Have have{.first = what % 4 == 1 ? 0 : program_.Byte() * kHaveWordBits, .words = {program_.Number(0)}};
    if (what % 4 == 3) have.words.resize(1 + program_.Byte() % kMaxHaveWords, program_.Byte());
    said_to_have_.AddWords(have.first, have.words);
    Send(have);
  }

  // A piece that is due in some of its fields; where it is known not to be, the receiver must not go on.
  void SendAnyData() {
    const uint8_t right = program_.Byte();
    while (open_ && Receive(0)) {
    }
    const bool known = (right & 1) != 0 && !asked_.empty();
    const Asked due = known ? asked_.begin()->second : Asked{};
    const Data data{
        .request_id = known ? asked_.begin()->first : program_.Below(8),
        .offset = (right & 2) != 0 ? due.next : program_.Number(due.next),
        .bytes = static_cast<uint32_t>(
            ((right & 4) != 0 ? due.left + (right >> 3) : program_.Number(due.left)) % (kMaxPieceBytes + 2))};
    const bool is_due = data.bytes > 0 && data.offset == due.next && data.bytes <= due.left;
    Send(data);
    if (known && !is_due && aligned_) ExpectClosed();
    SendBytes(program_.Bytes(program_.Byte()));
    aligned_ = false;
  }
  // On an offence the receiver closes by itself.
  // Called only while aligned_ is set. In the middle of a frame the receiver may take what follows for the
  // frame's bytes, and sees no offence.
  void ExpectClosed() {
    while (open_) Receive(kHangMs);
  }

  uint64_t NextOffset() const { return asked_.empty() ? 0 : asked_.begin()->second.next; }

  // The next bytes of the first request or, now and then, of the last; false when none is left.
  bool Answer(uint64_t max) {
    while (asked_.empty() && answered_ < due_ && open_ && aligned_ && patient_) {
      // An honest source is asked for all that was planned, a liar perhaps not.
      patient_ = Receive(honest_ && !taken_back_ && !refused_ ? kHangMs : kPatienceMs);
    }
    while (open_ && Receive(0)) {
    }
    if (!open_ || asked_.empty()) return false;
    const auto asked = max % 5 == 0 ? std::prev(asked_.end()) : asked_.begin();
    const uint64_t bytes = std::min(max, asked->second.left);
    std::string piece(bytes, '\0');
    WritePattern(HostSpan(reinterpret_cast<std::byte*>(piece.data()), bytes), asked->second.next);
    if (std::exchange(flip_next_, false)) {
      piece[bytes / 2] ^= 1;
      flipped_ = true;
    }
    SendBytes(EncodeFrame(Data{.request_id = asked->first,
                               .offset = asked->second.next,
                               .bytes = static_cast<uint32_t>(bytes)}) +
              piece);
    asked->second.whole = false;
    asked->second.next += bytes;
    asked->second.left -= bytes;
    answered_ += bytes;
    if (asked->second.left == 0) asked_.erase(asked);
    return true;
  }

  // Reads what is there within this time; false when there was nothing, or nothing comes any more.
  bool Receive(int wait_ms) {
    pollfd ready = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const int polled = poll(&ready, 1, wait_ms);
    CHECK(wait_ms < kHangMs || polled == 1) << "the receiver neither asks nor goes";
    if (polled != 1) return false;
    char bytes[4096];
    const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) {
      open_ = false;
      return false;
    }
    said_.append(bytes, got);
    for (;;) {
      const auto frame = DecodeFrame(said_);
      CHECK_OK(frame.status()) << "the receiver sent what is not a frame";
      if (!frame->has_value()) return true;
      said_.erase(0, (*frame)->bytes);
      if (std::holds_alternative<Hello>((*frame)->frame)) {
        CHECK(!std::exchange(greeted_, true));
      } else if (std::holds_alternative<Follow>((*frame)->frame)) {
        CHECK(greeted_ && !std::exchange(followed_, true) && (plan_.fills || !honest_));
      } else if (const auto* request = std::get_if<Request>(&(*frame)->frame)) {
        CHECK(request->bytes > 0 && request->offset + request->bytes <= kImageBytes);
        asked_[request->id] = {.next = request->offset, .left = request->bytes};
      } else {
        CHECK(std::holds_alternative<Cancel>((*frame)->frame) ||
              std::holds_alternative<Bye>((*frame)->frame));
      }
    }
  }

  void Send(const Frame& frame) { SendBytes(EncodeFrame(frame)); }
  void SendBytes(std::string_view bytes) {
    for (int pieces = 1; !bytes.empty() && open_; ++pieces) {
      const bool rest = send_bytes_ == 0 || pieces >= kMaxPieces;
      const std::string_view now = rest ? bytes : bytes.substr(0, send_bytes_);
      const ssize_t sent = send(socket_.get(), now.data(), now.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        open_ = false;
        return;
      }
      bytes.remove_prefix(sent);
    }
  }

  UniqueFd socket_;
  Program program_;
  const Plan& plan_;
  RunningPull& pull_;
  bool taken_back_ = false;  // a fetch was
  uint64_t due_ = 0;
  uint64_t answered_ = 0;
  bool open_ = true;
  bool patient_ = true;  // a request may follow
  bool aligned_ = true;  // the receiver is between two frames
  bool greeted_ = false;
  bool followed_ = false;
  bool refused_ = false;
  bool honest_ = true;
  bool flip_next_ = false;
  bool flipped_ = false;
  size_t send_bytes_ = 0;  // at a time, see kMaxPieces; 0: all
  std::string said_;
  std::map<uint64_t, Asked> asked_;
  Availability said_to_have_;
};

// What all sequences share.
class Receiver {
 public:
  Receiver()
      : memory_(kGapBytes + kMaxFetches * (kMaxFetchBytes + kGapBytes)),
        transport_(*TcpTransport::Create({.listen = "", .threads = 1})),
        listener_(*ListenOn(*ResolveAddress({"127.0.0.1", 0}))),
        descriptor_(EncodeDescriptor(
            {.lane = std::string(kTcpLane),
             .image_bytes = kImageBytes,
             .addresses = {FormatHostPort({"127.0.0.1", *ListeningPort(listener_.get())})}})) {
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
    CHECK_OK(transport_->RegisterMemory(memory_.data(), memory_.bytes()));
    // As a source does it: then small pieces do not wait for an acknowledgement, which the kernel delays.
    // Accepted sockets have it from the listener.
    CHECK_OK(Configure(listener_.get(), {}));
  }

  void Pull(Program program) {
    const Plan plan(program);
    std::memset(memory_.data(), static_cast<int>(kUntouched), memory_.bytes());
    bool honest = false, flipped = false, taken_back = false, refused = false;
    std::vector<uint64_t> said_to_have;
    RunningPull running;
    absl::Notification source_gone;
    source_thread_.Submit([&] {
      LyingSource lying(Accept(), program, plan, &running);
      lying.Speak();
      honest = lying.honest();
      flipped = lying.flipped();
      taken_back = lying.taken_back();
      refused = lying.refused();
      said_to_have = lying.said_to_have().Words();
      source_gone.Notify();
    });
    Completions done;
    std::shared_ptr<const Availability> mirror;
    auto pull = transport_->Connect(RequestContext::Background(absl::Milliseconds(kHangMs)), descriptor_);
    if (pull.ok()) {
      mirror = (*pull)->availability();
      std::vector<FetchId> fetches;
      for (size_t i = 0; i < plan.fetches.size(); ++i) {
        const HostSpan destination = Destination(plan, i);
        const auto complete = [destination, done = done.Expect()](const FetchResult& result) {
          if (!result.ok()) std::ranges::fill(destination, kGivenBack);
          done(result);
        };
        fetches.push_back(
            (*pull)->Fetch(plan.fetches[i].offset, Spans(plan, i), SteadyTime::InfiniteFuture(), complete));
      }
      running.Set(pull->get(), std::move(fetches));
      if (!plan.hasty) CHECK(done.Wait()) << "a fetch did not complete";
      running.Set(nullptr, {});
      pull->reset();
      CHECK_EQ(done.completed(), plan.fetches.size());
    }
    // The pull is gone, and the source may still send: none of that may be written.
    const std::vector<std::byte> before(memory_.data(), memory_.data() + memory_.bytes());
    source_gone.WaitForNotification();
    CHECK(std::equal(before.begin(), before.end(), memory_.data())) << "written after the pull's end";
    CHECK(!done.repeated());
    if (mirror != nullptr) CheckMirror(*mirror, said_to_have);
    if (honest && pull.ok()) CHECK_EQ(mirror != nullptr, plan.fills);
    Check(plan, pull.ok(), done, honest && !plan.hasty && !taken_back && !refused, flipped);
  }

 private:
  HostSpan Destination(const Plan& plan, size_t fetch) const {
    return memory_.span(kGapBytes + fetch * (kMaxFetchBytes + kGapBytes), plan.fetches[fetch].bytes);
  }

  // The same in odd pieces.
  std::vector<HostSpan> Spans(const Plan& plan, size_t fetch) const {
    return Fragment(Destination(plan, fetch), 1 + plan.fetches[fetch].offset % 5000);
  }

  UniqueFd Accept() const {
    pollfd ready = {.fd = listener_.get(), .events = POLLIN, .revents = 0};
    CHECK_EQ(poll(&ready, 1, kHangMs), 1);
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    CHECK(socket) << std::strerror(errno);
    return socket;
  }

  static void CheckMirror(const Availability& mirror, const std::vector<uint64_t>& said_to_have) {
    CHECK(mirror.ended()) << "the pull is over, and what is known of its source is not";
    // The other way round the pull may break at the very moment at which the last chunk is announced.
    CHECK(!mirror.end().ok() || mirror.complete()) << "a source that lacks chunks is taken for a whole one";
    if (mirror.chunk_bytes() != kChunkBytes) return;
    const std::vector<uint64_t> known = mirror.Words();
    for (size_t i = 0; i < known.size(); ++i) {
      CHECK_EQ(known[i] & ~said_to_have[i], 0u) << "known of what the source did not say";
    }
  }

  // `all_right`: the source was honest, and no fetch was taken back.
  void Check(const Plan& plan, bool connected, const Completions& done, bool all_right, bool flipped) const {
    if (all_right) CHECK(connected) << "an honest source was refused";
    const std::vector<absl::Status> statuses = done.statuses();
    const auto digests = done.digests();
    uint64_t behind = 0;  // of the last destination
    for (size_t i = 0; i < plan.fetches.size(); ++i) {
      const HostSpan destination = Destination(plan, i);
      const uint64_t begin = destination.data() - memory_.data();
      CHECK(HoldsOnly(memory_.span(behind, begin - behind), kUntouched)) << "written outside a destination";
      behind = begin + destination.size();
      if (!connected) {
        CHECK(HoldsOnly(destination, kUntouched));
        continue;
      }
      if (all_right) CHECK_OK(statuses[i]) << "an honest source's fetch";
      if (!statuses[i].ok()) {
        CHECK(HoldsOnly(destination, kGivenBack)) << "written after its completion";
        continue;
      }
      const std::vector<HostSpan> spans = Spans(plan, i);
      if (!flipped && all_right) CHECK(HoldPattern(spans, plan.fetches[i].offset));
      if (!digests[i].has_value()) continue;
      DigestBuilder digest;
      for (const HostSpan& span : spans) digest.Update(span);
      CHECK(*digests[i] == digest.Finish()) << "the digest is not that of the bytes";
    }
    CHECK(HoldsOnly(memory_.span(behind, memory_.bytes() - behind), kUntouched));
  }

  TestMemory memory_;
  const std::unique_ptr<TcpTransport> transport_;
  const UniqueFd listener_;
  const std::string descriptor_;
  ServingThreads source_thread_{1};
};

}  // namespace

void TestOneInput(std::string_view input) {
  static auto* const receiver = new Receiver;
  receiver->Pull(Program(input));
}

std::vector<std::string> Seeds() {
  const std::string one("\x01\x07\x00\x88\x13", 5),
      three("\x83\x07\x00\x88\x13\x00\x40\x01\x02\xff\xff\xff\xff", 13);
  const std::string answer("\x01\xff\x0f", 3), whole("\x02\xff\x7f", 3), welcome("\x01"), none(1, '\0');
  return {
      one + welcome + answer + answer + answer,
      three + welcome + answer + whole + answer,
      three + welcome + "\x06\x01" + answer + std::string("\x07\x00", 2) + answer,
      three + welcome + answer + "\x07\x01" + answer + answer,
      three + welcome + answer + "\x07\x03" + whole + "\x07\x05" + answer,
      three + welcome + answer + std::string("\x08\x07\x02xy", 5),
      three + welcome + answer + "\x08\x05\x02\x05",
      one + welcome + answer + "\x0f",
      one + welcome + answer + "\x0e\x14",
      "\x42" + three.substr(1) + welcome + answer,
      one + none + std::string("\x0a\x01\x00\x01\x00\x00", 6) + answer,
      one + none + "\x0b",
      three + welcome + answer + std::string("\x09\x01\x00\x02", 4) + answer,
      // Of an image that fills: everything, some of it, refusals, and what no source says.
      "\xa3" + three.substr(1) + welcome + std::string("\x05\x00", 2) + answer + whole,
      "\xa3" + three.substr(1) + welcome + "\x05\x11" + answer + "\x05\xc0" + "\x05\x9f" + answer,
      "\xa1" + one.substr(1) + welcome + "\x05\xc0" + answer,
      "\xa3" + three.substr(1) + welcome + "\x05\x08" + std::string("\x05\xe4\x00\x00", 4) + answer,
      "\xa3" + three.substr(1) + welcome + std::string("\x05\xe5\x00\x00\x01", 5) + answer,
      "\xa3" + three.substr(1) + welcome + std::string("\x05\xe3\x00\x00\x01\x02\xff", 7) + answer,
      "\xe3" + three.substr(1) + welcome + "\x05\x21" + answer,
      one + welcome + answer + std::string("\x05\x01\x00\x00\x01", 5) + answer,
  };
}

}  // namespace tensorcast::fuzz
