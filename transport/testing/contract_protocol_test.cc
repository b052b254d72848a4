// Ends that break the pull protocol, or speak another version of it, over each lane's channel. A source
// answers such a receiver or closes its connection, and serves all others as before; a receiver's pull ends
// with an error that says so, and nothing is written but what was asked for.
#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "base/steady_time.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport::contract_protocol_test {
namespace {

using pull::Bye;
using pull::Cancel;
using pull::Data;
using pull::Error;
using pull::Follow;
using pull::Frame;
using pull::Have;
using pull::Hello;
using pull::NotHere;
using pull::Request;
using pull::Welcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kChunkBytes = ProtocolContract::kFillingChunkBytes;

TEST_P(ProtocolContract, UnknownPullId_IsNotFound) {
  auto peer = Connected();
  Hello hello = HelloFrame();
  hello.pull_id[3] ^= 1;
  peer->Send(hello);
  EXPECT_EQ(peer->NextAs<Error>().status.code(), absl::StatusCode::kNotFound);
  ExpectServed();
}

TEST_P(ProtocolContract, ReceiverOfOtherVersion_IsRefusedWithVersions) {
  auto peer = Connected();
  Hello hello = HelloFrame();
  hello.version = 9;
  peer->Send(hello);
  const absl::Status status = peer->NextAs<Error>().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("version 9 of the pull protocol, and this source speaks version 4"));
  ExpectServed();
}

TEST_P(ProtocolContract, FirstFrameThatNoReceiverSends_EndsConnection) {
  const std::vector<Frame> frames = {
      Welcome{.max_requests = 1, .max_request_bytes = 1, .image_bytes = 1},
      Error{.request_id = 1, .status = absl::InternalError("")},
      Data{.request_id = 1, .offset = 0, .bytes = 1},
      Have{.words = {1}},
      NotHere{.id = 1},
  };
  for (const Frame& frame : frames) {
    auto peer = Connected();
    peer->Send(frame);
    EXPECT_TRUE(peer->IsClosed()) << frame.index();
  }
  ExpectServed();
}

TEST_P(ProtocolContract, ProtocolError_EndsOnlyItsConnection) {
  const std::vector<std::vector<Frame>> offences = {
      {HelloFrame()},
      {Data{.request_id = 1, .offset = 0, .bytes = 1}},
      {Welcome{.max_requests = 1, .max_request_bytes = 1}},
      {Error{.request_id = 1, .status = absl::InternalError("")}},
      {Cancel{.id = 1}},
      {Have{.words = {1}}},
      {NotHere{.id = 1}},
      {Follow{}},
      {Request{.id = 2, .offset = 0, .bytes = 1}, Request{.id = 2, .offset = 0, .bytes = 1}},
      {Request{.id = 2, .offset = 0, .bytes = 1}, Request{.id = 1, .offset = 0, .bytes = 1}},
  };
  for (size_t i = 0; i < offences.size(); ++i) {
    auto peer = Introduced();
    for (const Frame& frame : offences[i]) peer->Send(frame);
    EXPECT_TRUE(peer->IsClosed()) << "offence " << i;
  }
  ExpectServed();
}

TEST_P(ProtocolContract, RequestPastTheEnd_IsRefusedAndNextOneServed) {
  auto peer = Introduced();
  peer->Send(Request{.id = 1, .offset = kImageBytes, .bytes = 1});
  peer->Send(Request{.id = 2, .offset = ~uint64_t{0}, .bytes = 2});
  peer->Send(Request{.id = 3, .offset = 1, .bytes = ~uint64_t{0}});
  for (uint64_t id : {1, 2, 3}) {
    const auto error = peer->NextAs<Error>();
    EXPECT_EQ(error.request_id, id);
    EXPECT_EQ(error.status.code(), absl::StatusCode::kInvalidArgument);
  }
  const Request good{.id = 4, .offset = 0, .bytes = kImageBytes};
  peer->Send(good);
  ExpectAnswer(*peer, good);
  peer->Send(Cancel{.id = 4});  // it is over, and that is not an offence
  const Request next{.id = 5, .offset = 7, .bytes = 100};
  peer->Send(next);
  ExpectAnswer(*peer, next);
}

TEST_P(ProtocolContract, RevokedPull_IsToldToReceiver) {
  auto peer = Introduced();
  serving_.reset();
  const auto error = peer->NextAs<Error>();
  EXPECT_EQ(error.request_id, pull::kWholePull);
  EXPECT_EQ(error.status.code(), absl::StatusCode::kNotFound);
}

TEST_P(ProtocolContract, FollowingPull_IsToldPresentAndNewChunks) {
  const auto availability = ServeFilling();
  availability->Add(3);
  auto peer = Introduced();
  peer->Send(Follow{});
  EXPECT_EQ(peer->NextAs<Have>(), (Have{.first = 0, .words = {0b1000}}));
  availability->Add(24);
  EXPECT_EQ(peer->NextAs<Have>(), (Have{.first = 0, .words = {0b1000 | 1 << 24}}));
  const Request request{.id = 1, .offset = 24 * kChunkBytes, .bytes = kImageBytes - 24 * kChunkBytes};
  peer->Send(request);
  ExpectAnswer(*peer, request);
}

TEST_P(ProtocolContract, RequestForMissingChunk_IsRefusedAndNextOneServed) {
  const auto availability = ServeFilling();
  availability->Add(1);
  auto peer = Introduced();
  peer->Send(Request{.id = 1, .offset = 0, .bytes = 1});
  EXPECT_EQ(peer->NextAs<NotHere>().id, 1u);
  peer->Send(Request{.id = 2, .offset = kChunkBytes, .bytes = kChunkBytes + 1});
  EXPECT_EQ(peer->NextAs<NotHere>().id, 2u);
  const Request good{.id = 3, .offset = kChunkBytes + 7, .bytes = kChunkBytes - 7};
  peer->Send(good);
  ExpectAnswer(*peer, good);
  // What lies behind the image will never be there.
  peer->Send(Request{.id = 4, .offset = kImageBytes, .bytes = 1});
  EXPECT_EQ(peer->NextAs<Error>().status.code(), absl::StatusCode::kInvalidArgument);
  peer->Send(Cancel{.id = 2});
  peer->Send(Bye{});
  peer->NextAs<Bye>();
}

TEST_P(ProtocolContract, RepeatedOrLateFollow_EndsConnection) {
  const auto availability = ServeFilling();
  availability->Add(0);
  auto twice = Introduced();
  twice->Send(Follow{});
  twice->NextAs<Have>();
  twice->Send(Follow{});
  EXPECT_TRUE(twice->IsClosed());
  for (uint32_t chunk = 1; chunk < availability->chunks(); ++chunk) availability->Add(chunk);
  auto late = Introduced();
  late->Send(Follow{});
  EXPECT_TRUE(late->IsClosed());
  ExpectServed();
}

TEST_P(ProtocolContract, FillingImageWithInvalidChunkSize_IsNotServed) {
  const std::vector<HostSpan> segments = {source_memory_.span(0, kImageBytes)};
  const auto image =
      std::make_shared<InPlaceImage>(segments, std::make_shared<Availability>(kImageBytes, 1000));
  EXPECT_EQ(source_->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
  const auto other =
      std::make_shared<InPlaceImage>(segments, std::make_shared<Availability>(kImageBytes + 1, 4096));
  EXPECT_EQ(source_->Serve(other, /*receiver=*/"").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ProtocolContract, WelcomeForOtherImage_IsRefused) {
  Welcome welcome = kWelcome;
  welcome.image_bytes += 1;
  EXPECT_FALSE(ConnectPull(welcome).ok());
  EXPECT_TRUE(peer_->IsClosed());
}

TEST_P(ProtocolContract, WelcomeWithOtherVersion_IsRefusedWithVersions) {
  Welcome welcome = kWelcome;
  welcome.version = 9;
  const absl::Status status = ConnectPull(welcome);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("version 9"), HasSubstr("this receiver speaks version 4")));
}

TEST_P(ProtocolContract, WelcomeWithInvalidChunkSize_IsRefused) {
  for (const uint64_t chunk_bytes : {uint64_t{1}, uint64_t{4095}, ~uint64_t{0}}) {
    Welcome welcome = kWelcome;
    welcome.chunk_bytes = chunk_bytes;
    EXPECT_EQ(ConnectPull(welcome).code(), absl::StatusCode::kInternal) << chunk_bytes;
    EXPECT_TRUE(peer_->IsClosed());
  }
}

TEST_P(ProtocolContract, AnswerThatIsNotWelcome_IsRefused) {
  const std::vector<Frame> answers = {
      Hello{},
      Request{.id = 1, .offset = 0, .bytes = 1},
      Data{.request_id = 1, .offset = 0, .bytes = 1},
      Error{.request_id = 3, .status = absl::InternalError("")},
      Bye{},
  };
  for (const Frame& answer : answers) {
    const absl::Status status = ConnectPull(answer);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(peer_->IsClosed());
  }
}

TEST_P(ProtocolContract, ErrorInHandshake_IsReturnedWithAddress) {
  const absl::Status refused = absl::ResourceExhaustedError("busy");
  const absl::Status status = ConnectPull(Error{.status = refused});
  EXPECT_EQ(status.code(), refused.code());
  EXPECT_THAT(status.message(), AllOf(HasSubstr("busy"), HasSubstr(peer_address_)));
}

TEST_P(ProtocolContract, PiecesOfTwoRequests_MayAlternate) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request first = Fetch();
  pull_->Fetch(5000, {receiver_memory_.span(800000, 200)}, SteadyTime::InfiniteFuture(), done_.Expect());
  const auto second = peer_->NextAs<Request>();
  SendPattern(second.id, 5000, 100);
  SendPattern(first.id, 10, 900);
  SendPattern(second.id, 5100, 100);
  SendPattern(first.id, 910, 100);
  ASSERT_TRUE(done_.Wait());
  EXPECT_THAT(done_.statuses(), ::testing::Each(absl::OkStatus()));
  EXPECT_TRUE(HoldsPattern(Place(), 10));
  EXPECT_TRUE(HoldsPattern(receiver_memory_.span(800000, 200), 5000));
}

TEST_P(ProtocolContract, PieceOutsideItsRequest_BreaksPullUnwritten) {
  for (const auto& [offset, bytes] : {std::pair{10, 1001}, {9, 1}, {900, 111}, {1010, 1}}) {
    ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
    SendPattern(Fetch().id, offset, bytes);
    ExpectBrokenAndNothingWritten();
  }
}

TEST_P(ProtocolContract, UnrequestedPiece_IsNotReceived) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  SendPattern(Fetch().id + 1, 10, 1);
  ExpectBrokenAndNothingWritten();
}

TEST_P(ProtocolContract, RepeatedPiece_BreaksThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  SendPattern(request.id, 10, 600);
  SendPattern(request.id, 609, 401);  // its first byte came before
  EXPECT_FALSE(Result().ok());
  EXPECT_TRUE(peer_->IsClosed());
}

TEST_P(ProtocolContract, ErrorForRequest_FailsFetchAndKeepsPull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  peer_->Send(Error{.request_id = Fetch().id, .status = absl::InvalidArgumentError("no")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kInvalidArgument);
  SendPattern(Fetch().id, 10, 1000);
  EXPECT_EQ(Result(), absl::OkStatus());
}

TEST_P(ProtocolContract, ErrorForPull_BreaksThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  peer_->Send(Error{.status = absl::NotFoundError("revoked")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kNotFound);
}

TEST_P(ProtocolContract, SourceThatGoesWithoutAnswer_IsUnavailable) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  peer_.reset();
  EXPECT_EQ(Result().code(), absl::StatusCode::kUnavailable) << Result();
}

TEST_P(ProtocolContract, PullDestructor_ClosesConnectionOfSilentSource) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  pull_.reset();
  EXPECT_EQ(done_.completed(), 1u);
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(peer_->IsClosed());
}

TEST_P(ProtocolContract, LargeFetch_IsSplitIntoRequestsOfMaxBytes) {
  Welcome welcome = kWelcome;
  welcome.max_requests = 2;
  welcome.max_request_bytes = 300;
  ASSERT_EQ(ConnectPull(welcome), absl::OkStatus());
  Request request = Fetch();
  uint64_t offset = 10;
  for (uint32_t bytes : {300, 300, 300, 100}) {
    EXPECT_EQ(request.offset, offset);
    EXPECT_EQ(request.bytes, bytes);
    SendPattern(request.id, offset, bytes);
    offset += bytes;
    if (offset < 1010) request = peer_->NextAs<Request>();
  }
  EXPECT_EQ(Result(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Place(), 10));
  EXPECT_EQ(done_.digests()[0], ComputeDigest(Place()));
}

TEST_P(ProtocolContract, FlippedBit_ChangesTheDigest) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  std::string piece = Pattern(10, 1000);
  const Digest expected = ComputeDigest(std::as_bytes(std::span(piece)));
  piece[777] ^= 1;
  peer_->SendPiece({.request_id = Fetch().id, .offset = 10, .bytes = 1000}, piece);
  EXPECT_EQ(Result(), absl::OkStatus());
  ASSERT_TRUE(done_.digests()[0].has_value());
  EXPECT_NE(*done_.digests()[0], expected);
}

TEST_P(ProtocolContract, AnnouncedChunks_AreMirroredUntilComplete) {
  ConnectFillingPull();
  const std::shared_ptr<const Availability> mirror = pull_->availability();
  peer_->Send(Have{.first = 0, .words = {0b101}});
  ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->count() == 2; }));
  EXPECT_TRUE(mirror->Has(0) && mirror->Has(2));
  EXPECT_FALSE(mirror->ended());
  peer_->Send(Have{.first = 0, .words = {(1 << 25) - 1}});
  ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->ended(); }));
  EXPECT_EQ(mirror->end(), absl::OkStatus());
  EXPECT_TRUE(mirror->complete());
}

// Chunks and words past the image, one far past it, and the refusal of what was not asked for.
TEST_P(ProtocolContract, FalseAnnouncement_BreaksThePull) {
  const std::vector<Frame> lies = {Have{.first = 0, .words = {1 << 25}}, Have{.first = 0, .words = {1, 0}},
                                   Have{.first = 0xffffffc0, .words = {0}}, NotHere{.id = 1}};
  for (const Frame& lie : lies) {
    ConnectFillingPull();
    const std::shared_ptr<const Availability> mirror = pull_->availability();
    peer_->Send(lie);
    ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->ended(); }));
    EXPECT_EQ(mirror->end().code(), absl::StatusCode::kInternal) << mirror->end();
    EXPECT_EQ(mirror->count(), 0u);
    EXPECT_TRUE(peer_->IsClosed());
  }
}

TEST_P(ProtocolContract, NotHere_FailsFetchAndKeepsPull) {
  ConnectFillingPull();
  peer_->Send(NotHere{.id = Fetch().id});
  EXPECT_EQ(Result().code(), absl::StatusCode::kFailedPrecondition) << Result();
  EXPECT_THAT(Result().message(), HasSubstr(peer_address_));
  SendPattern(Fetch().id, 10, 1000);
  EXPECT_EQ(Result(), absl::OkStatus());
}

TEST_P(ProtocolContract, NotHereForAnnouncedChunk_BreaksThePull) {
  ConnectFillingPull();
  const std::shared_ptr<const Availability> mirror = pull_->availability();
  peer_->Send(Have{.first = 0, .words = {1}});
  ASSERT_TRUE(AwaitChange(*mirror, [&] { return mirror->Has(0); }));
  peer_->Send(NotHere{.id = Fetch().id});
  EXPECT_EQ(Result().code(), absl::StatusCode::kInternal) << Result();
  ExpectBrokenAndNothingWritten();
}

TEST_P(ProtocolContract, FailedPreconditionOfSourceIngest_BecomesUnavailable) {
  ConnectFillingPull();
  Fetch();
  peer_->Send(Error{.status = absl::FailedPreconditionError("the disk is away")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kUnavailable) << Result();
  EXPECT_THAT(pull_->availability()->end().message(), HasSubstr("the disk is away"));
  EXPECT_TRUE(peer_->IsClosed());
}

TEST_P(ProtocolContract, HaveOrNotHereFromWholeSource_BreaksThePull) {
  for (const bool announces : {false, true}) {
    ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
    EXPECT_EQ(pull_->availability(), nullptr);
    const Request request = Fetch();  // and no FOLLOW before it
    peer_->Send(announces ? Frame(Have{.words = {1}}) : Frame(NotHere{.id = request.id}));
    ExpectBrokenAndNothingWritten();
  }
}

}  // namespace
}  // namespace tensorcast::transport::contract_protocol_test
