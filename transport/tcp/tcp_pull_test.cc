// Sources that break the pull protocol, or speak another version of it: the pull ends with an error that says
// so, and nothing is written but what was asked for.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/tcp/protocol_fixture.h"

namespace tensorcast::transport::tcp {
namespace {

using testing::HasSubstr;

// A pull from a RawPeer, as far as its WELCOME.
class LyingSourceTest : public ProtocolTest {
 protected:
  absl::Status ConnectPull(const Welcome& welcome) {
    return ConnectPull([&] { source_.Send(welcome); });
  }
  absl::Status ConnectPull(const std::function<void()>& answer) {
    const Descriptor descriptor{
        .lane = std::string(kTcpLane), .image_bytes = kImageBytes, .addresses = {listener_.address()}};
    absl::Status status;
    std::thread connecting([&] {
      absl::StatusOr<std::unique_ptr<Pull>> pull =
          transport_->Connect(RequestContext::Background(absl::Seconds(30)), EncodeDescriptor(descriptor));
      status = pull.status();
      if (pull.ok()) pull_ = *std::move(pull);
    });
    source_ = listener_.Accept();
    source_.NextAs<Hello>();
    answer();
    connecting.join();
    return status;
  }

  // Image bytes 10 to 1010, into the end of the memory.
  Request Fetch() {
    pull_->Fetch(10, {Destination()}, SteadyTime::InfiniteFuture(), done_.Expect());
    return source_.NextAs<Request>();
  }
  HostSpan Destination() const { return memory_.span(900000, 1000); }
  // What the last fetch came to.
  absl::Status Result() {
    EXPECT_TRUE(done_.Wait());
    return done_.statuses().back();
  }
  void ExpectBrokenAndNothingWritten() {
    const absl::Status status = Result();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(HoldsOnly(memory_.span(900000, 2000), std::byte{0}));
    pull_->Fetch(0, {Destination()}, SteadyTime::InfiniteFuture(), done_.Expect());
    EXPECT_FALSE(Result().ok());
    EXPECT_TRUE(source_.IsClosed());
  }

  RawListener listener_;
  RawPeer source_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};

constexpr Welcome kWelcome = {.max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

TEST_F(LyingSourceTest, WelcomeForOtherImage_IsRefused) {
  Welcome welcome = kWelcome;
  welcome.image_bytes += 1;
  EXPECT_FALSE(ConnectPull(welcome).ok());
  EXPECT_TRUE(source_.IsClosed());
}

TEST_F(LyingSourceTest, WelcomeWithOtherVersion_IsRefusedWithVersions) {
  Welcome welcome = kWelcome;
  welcome.version = 9;
  const absl::Status status = ConnectPull(welcome);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("version 9"), HasSubstr("speaks 4")));
}

TEST_F(LyingSourceTest, AnswerThatIsNotWelcome_IsRefused) {
  const std::vector<std::string> answers = {
      "HTTP/1.1 400 Bad Request\r\n",
      EncodeFrame(Hello{}),
      EncodeFrame(Request{.id = 1, .offset = 0, .bytes = 1}),
      EncodeFrame(Data{.request_id = 1, .offset = 0, .bytes = 1}),
      EncodeFrame(Error{.request_id = 3, .status = absl::InternalError("")}),
      EncodeFrame(Bye{}),
  };
  for (const std::string& answer : answers) {
    const absl::Status status = ConnectPull([&] { source_.SendBytes(answer); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(source_.IsClosed());
  }
}

TEST_F(LyingSourceTest, SourceThatClosesInHandshake_IsUnavailable) {
  EXPECT_EQ(ConnectPull([&] { source_.Close(); }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ConnectPull([&] { source_.Reset(); }).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LyingSourceTest, ErrorInHandshake_IsReturnedWithAddress) {
  const absl::Status refused = absl::ResourceExhaustedError("busy");
  const absl::Status status = ConnectPull([&] { source_.Send(Error{.status = refused}); });
  EXPECT_EQ(status.code(), refused.code());
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("busy"), HasSubstr(listener_.address())));
}

TEST_F(LyingSourceTest, PiecesSentByteByByte_ArriveWithTheirDigest) {
  ASSERT_EQ(ConnectPull([&] {
              for (const char byte : EncodeFrame(kWelcome)) source_.SendBytes({&byte, 1});
            }),
            absl::OkStatus());
  const Request request = Fetch();
  EXPECT_EQ(request.offset, 10u);
  EXPECT_EQ(request.bytes, 1000u);
  const auto piece = [&](uint64_t offset, uint32_t bytes) {
    return EncodeFrame(Data{.request_id = request.id, .offset = offset, .bytes = bytes}) +
           Pattern(offset, bytes);
  };
  for (const char byte : piece(10, 400) + piece(410, 1) + piece(411, 599)) source_.SendBytes({&byte, 1});
  EXPECT_EQ(Result(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_EQ(done_.digests()[0], ComputeDigest(Destination()));
}

TEST_F(LyingSourceTest, FlippedBit_ChangesTheDigest) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  std::string piece = Pattern(10, 1000);
  const Digest expected = ComputeDigest(std::as_bytes(std::span(piece)));
  piece[777] ^= 1;
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, piece);
  EXPECT_EQ(Result(), absl::OkStatus());
  ASSERT_TRUE(done_.digests()[0].has_value());
  EXPECT_NE(*done_.digests()[0], expected);
}

TEST_F(LyingSourceTest, PiecesOfTwoRequests_MayAlternate) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request first = Fetch();
  pull_->Fetch(5000, {memory_.span(800000, 200)}, SteadyTime::InfiniteFuture(), done_.Expect());
  const auto second = source_.NextAs<Request>();
  source_.SendPiece({.request_id = second.id, .offset = 5000, .bytes = 100}, Pattern(5000, 100));
  source_.SendPiece({.request_id = first.id, .offset = 10, .bytes = 900}, Pattern(10, 900));
  source_.SendPiece({.request_id = second.id, .offset = 5100, .bytes = 100}, Pattern(5100, 100));
  source_.SendPiece({.request_id = first.id, .offset = 910, .bytes = 100}, Pattern(910, 100));
  ASSERT_TRUE(done_.Wait());
  EXPECT_THAT(done_.statuses(), testing::Each(absl::OkStatus()));
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_TRUE(HoldsPattern(memory_.span(800000, 200), 5000));
}

TEST_F(LyingSourceTest, PieceLongerThanRequest_BreaksPullUnwritten) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1001}, Pattern(10, 1001));
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, PieceAtWrongOffset_BreaksPullUnwritten) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 11, .bytes = 1}, "x");
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, UnrequestedPiece_IsNotReceived) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id + 1, .offset = 10, .bytes = 1}, "x");
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, RepeatedPiece_BreaksThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  for (int i = 0; i < 2; ++i) {
    source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 600}, Pattern(10, 600));
  }
  EXPECT_FALSE(Result().ok());
  EXPECT_TRUE(source_.IsClosed());
}

// A source with an image that fills, in 25 chunks.
class LyingFillingSourceTest : public LyingSourceTest {
 protected:
  static constexpr uint64_t kChunkBytes = 4096;
  void SetUp() override {
    LyingSourceTest::SetUp();
    Welcome welcome = kWelcome;
    welcome.chunk_bytes = kChunkBytes;
    ASSERT_EQ(ConnectPull(welcome), absl::OkStatus());
    source_.NextAs<Follow>();
    mirror_ = pull_->availability();
    ASSERT_NE(mirror_, nullptr);
    EXPECT_EQ(mirror_->chunks(), 25u);
  }
  // Every chunk from this one on.
  void ExpectMirrorBroken() {
    ASSERT_TRUE(AwaitChange(*mirror_, [&] { return mirror_->ended(); }));
    EXPECT_EQ(mirror_->end().code(), absl::StatusCode::kInternal) << mirror_->end();
    EXPECT_EQ(mirror_->count(), 0u);
    EXPECT_TRUE(source_.IsClosed());
  }

  std::shared_ptr<const Availability> mirror_;
};

TEST_F(LyingFillingSourceTest, AnnouncedChunks_AreMirroredUntilComplete) {
  source_.Send(Have{.first = 0, .words = {0b101}});
  ASSERT_TRUE(AwaitChange(*mirror_, [&] { return mirror_->count() == 2; }));
  EXPECT_TRUE(mirror_->Has(0) && mirror_->Has(2));
  EXPECT_FALSE(mirror_->ended());
  source_.Send(Have{.first = 0, .words = {(1 << 25) - 1}});
  ASSERT_TRUE(AwaitChange(*mirror_, [&] { return mirror_->ended(); }));
  EXPECT_EQ(mirror_->end(), absl::OkStatus());
  EXPECT_TRUE(mirror_->complete());
}

TEST_F(LyingFillingSourceTest, AnnouncedChunksPastTheImage_BreakThePull) {
  source_.Send(Have{.first = 0, .words = {1 << 25}});
  ExpectMirrorBroken();
}

TEST_F(LyingFillingSourceTest, AnnouncedWordsPastTheImage_BreakThePull) {
  source_.Send(Have{.first = 0, .words = {1, 0}});
  ExpectMirrorBroken();
}

TEST_F(LyingFillingSourceTest, AnnouncementFarPastTheImage_BreaksThePull) {
  source_.Send(Have{.first = 0xffffffc0, .words = {0}});
  ExpectMirrorBroken();
}

TEST_F(LyingFillingSourceTest, NotHere_FailsFetchAndKeepsPull) {
  Request request = Fetch();
  source_.Send(NotHere{.id = request.id});
  EXPECT_EQ(Result().code(), absl::StatusCode::kFailedPrecondition) << Result();
  EXPECT_THAT(Result().message(), HasSubstr(listener_.address()));
  request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, Pattern(10, 1000));
  EXPECT_EQ(Result(), absl::OkStatus());
}

TEST_F(LyingFillingSourceTest, NotHereForAnnouncedChunk_BreaksThePull) {
  source_.Send(Have{.first = 0, .words = {1}});
  ASSERT_TRUE(AwaitChange(*mirror_, [&] { return mirror_->Has(0); }));
  source_.Send(NotHere{.id = Fetch().id});
  EXPECT_EQ(Result().code(), absl::StatusCode::kInternal) << Result();
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingFillingSourceTest, UnrequestedRefusal_BreaksThePull) {
  source_.Send(NotHere{.id = 1});
  ExpectMirrorBroken();
}

TEST_F(LyingFillingSourceTest, FailedPreconditionOfSourceIngest_BecomesUnavailable) {
  Fetch();
  source_.Send(Error{.status = absl::FailedPreconditionError("the disk is away")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kUnavailable) << Result();
  EXPECT_THAT(mirror_->end().message(), HasSubstr("the disk is away"));
  EXPECT_TRUE(source_.IsClosed());
}

TEST_F(LyingSourceTest, WelcomeWithInvalidChunkSize_IsRefused) {
  for (const uint64_t chunk_bytes : {uint64_t{1}, uint64_t{4095}, ~uint64_t{0}}) {
    Welcome welcome = kWelcome;
    welcome.chunk_bytes = chunk_bytes;
    EXPECT_EQ(ConnectPull(welcome).code(), absl::StatusCode::kInternal) << chunk_bytes;
    EXPECT_TRUE(source_.IsClosed());
  }
}

TEST_F(LyingSourceTest, HaveOrNotHereFromWholeSource_BreaksThePull) {
  for (const bool announces : {false, true}) {
    ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
    EXPECT_EQ(pull_->availability(), nullptr);
    const Request request = Fetch();  // and no FOLLOW before it
    source_.Send(announces ? Frame(Have{.words = {1}}) : Frame(NotHere{.id = request.id}));
    ExpectBrokenAndNothingWritten();
  }
}

TEST_F(LyingSourceTest, SourceThatClosesWithinPiece_IsUnavailable) {
  for (const bool reset : {false, true}) {
    ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
    const Request request = Fetch();
    source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, Pattern(10, 500));
    if (reset) {
      source_.Reset();
    } else {
      source_.Close();
    }
    EXPECT_EQ(Result().code(), absl::StatusCode::kUnavailable) << Result();
  }
}

TEST_F(LyingSourceTest, ErrorForRequest_FailsFetchAndKeepsPull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Request request = Fetch();
  source_.Send(Error{.request_id = request.id, .status = absl::InvalidArgumentError("no")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kInvalidArgument);
  request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, Pattern(10, 1000));
  EXPECT_EQ(Result(), absl::OkStatus());
}

TEST_F(LyingSourceTest, LargeFetch_IsSplitIntoRequestsOfMaxBytes) {
  Welcome welcome = kWelcome;
  welcome.max_requests = 2;
  welcome.max_request_bytes = 300;
  ASSERT_EQ(ConnectPull(welcome), absl::OkStatus());
  Request request = Fetch();
  uint64_t offset = 10;
  for (uint64_t bytes : {300, 300, 300, 100}) {
    EXPECT_EQ(request.offset, offset);
    EXPECT_EQ(request.bytes, bytes);
    source_.SendPiece({.request_id = request.id, .offset = offset, .bytes = static_cast<uint32_t>(bytes)},
                      Pattern(offset, bytes));
    offset += bytes;
    if (offset < 1010) request = source_.NextAs<Request>();
  }
  EXPECT_EQ(Result(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_EQ(done_.digests()[0], ComputeDigest(Destination()));
}

TEST_F(LyingSourceTest, ErrorForPull_BreaksThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  source_.Send(Error{.status = absl::NotFoundError("revoked")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kNotFound);
}

TEST_F(LyingSourceTest, PullDestructor_ClosesConnectionOfSilentSource) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  pull_.reset();
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(source_.IsClosed());
}

}  // namespace
}  // namespace tensorcast::transport::tcp
