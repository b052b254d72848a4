// Peers that break the pull protocol, or speak another version of it: whoever they face answers or closes
// their connection, and serves everybody else as before.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "transport/testing/test_image.h"
#include "transport/ucx/address.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_worker.h"
#include "transport/ucx/wire.h"

namespace tensorcast::transport {
namespace {

constexpr uint64_t kImageBytes = 100000;

// One end of a connection that says whatever a test wants and keeps what it hears.
class RawPeer : public EndpointOwner {
 public:
  RawPeer() { worker_ = *UcxWorker::Create({.tls = "tcp", .net_devices = "lo", .rma = false}); }
  ~RawPeer() override {
    absl::Notification closed;
    worker_->Run([&] {
      if (listener_ != nullptr) {
        ucp_listener_destroy(listener_);
      }
      if (endpoint_ == nullptr) {
        closed.Notify();
      } else {
        endpoint_->Close([&] { closed.Notify(); });
      }
    });
    closed.WaitForNotification();
    endpoint_.reset();
  }

  void Connect(const std::string& address) {
    const SocketAddress socket = *Resolve(*ParseHostPort(address));
    worker_->Run([&] { Own(*UcxEndpoint::Connect(worker_.get(), socket)); });
  }
  // The address at which one peer may connect.
  std::string Listen() {
    std::string address;
    worker_->Run([&] {
      const SocketAddress socket = *Resolve({"127.0.0.1", 0});
      ucp_listener_params_t params{};
      params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
      params.sockaddr.addr = socket.get();
      params.sockaddr.addrlen = socket.length;
      params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
        auto* self = static_cast<RawPeer*>(arg);
        self->Own(*UcxEndpoint::Accept(self->worker_.get(), request));
      };
      params.conn_handler.arg = this;
      ASSERT_EQ(ucp_listener_create(worker_->worker(), &params, &listener_), UCS_OK);
      ucp_listener_attr_t attributes{};
      attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
      ASSERT_EQ(ucp_listener_query(listener_, &attributes), UCS_OK);
      address = FormatHostPort({"127.0.0.1", PortOf(attributes.sockaddr)});
    });
    return address;
  }

  void Send(const wire::Control& message) {
    worker_->Run([&] { endpoint_->SendControl(message); });
  }
  void SendBytes(unsigned id, std::string bytes) {
    sent_.push_back(std::make_unique<std::string>(std::move(bytes)));
    worker_->Run([&] {
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
      const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_->ep(), id, sent_.back()->data(),
                                                       sent_.back()->size(), nullptr, 0, &param);
      if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request);
      }
    });
  }
  void SendPiece(const wire::DataHeader& header, ConstHostSpan bytes) {
    worker_->Run([&] { endpoint_->SendData(header, {bytes, nullptr}, [](absl::Status) {}); });
  }

  // The next message, or FAILED_PRECONDITION when the connection was closed instead.
  absl::StatusOr<wire::Control> Next() {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(this, &RawPeer::HeardOrLost), absl::Seconds(30))) {
      return absl::DeadlineExceededError("heard nothing");
    }
    if (heard_.empty()) {
      return absl::FailedPreconditionError("closed");
    }
    wire::Control message = heard_.front();
    heard_.pop_front();
    return message;
  }
  bool ClosedByPeer() { return Next().status().code() == absl::StatusCode::kFailedPrecondition; }
  template <typename Message>
  Message NextAs() {
    absl::StatusOr<wire::Control> message = Next();
    EXPECT_TRUE(message.ok()) << message.status();
    EXPECT_TRUE(std::holds_alternative<Message>(*message)) << message->index();
    return std::get<Message>(*message);
  }

  void OnControl(const wire::Control& message) override {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(message);
  }
  absl::Status OnPiece(const wire::DataHeader&, ConstHostSpan piece) override {
    absl::MutexLock lock(&mutex_);
    data_bytes_ += piece.size();
    return absl::OkStatus();
  }
  absl::StatusOr<HostSpan> OnRendezvous(const wire::DataHeader&, uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    data_bytes_ += bytes;
    return HostSpan();
  }
  void OnRendezvousReceived(const wire::DataHeader&, uint64_t, const absl::Status&) override {}
  void OnFailed(const absl::Status&) override {
    absl::MutexLock lock(&mutex_);
    lost_ = true;
  }
  bool WaitForData(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return data_bytes_ >= bytes; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30));
  }

 private:
  void Own(std::shared_ptr<UcxEndpoint> endpoint) {
    endpoint_ = std::move(endpoint);
    endpoint_->set_owner(this);
  }
  bool HeardOrLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lost_ || !heard_.empty(); }

  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::shared_ptr<UcxEndpoint> endpoint_;
  std::vector<std::unique_ptr<std::string>> sent_;
  absl::Mutex mutex_;
  std::deque<wire::Control> heard_ ABSL_GUARDED_BY(mutex_);
  uint64_t data_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

class ProtocolTest : public testing::Test {
 protected:
  void SetUp() override {
    transport_ = *UcxTransport::Create({});
    ASSERT_TRUE(transport_->RegisterMemory(memory_.data(), memory_.bytes()).ok());
    WritePattern(memory_.span(0, kImageBytes), 0);
    serving_ = *transport_->Serve(
        std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kImageBytes)}));
    descriptor_ = *DecodeDescriptor(serving_->descriptor());
  }

  // A well-behaved receiver is still served.
  void ExpectServed() {
    RawPeer peer;
    peer.Connect(transport_->address());
    peer.Send(Hello());
    EXPECT_EQ(peer.NextAs<wire::Welcome>().image_bytes, kImageBytes);
    peer.Send(wire::Request{.id = 1, .offset = 0, .bytes = kImageBytes});
    EXPECT_TRUE(peer.WaitForData(kImageBytes));
    peer.Send(wire::Bye{});
    peer.NextAs<wire::Bye>();
  }

  wire::Hello Hello() const {
    // A RawPeer's worker has segments of 64 KiB, and a longer message would abort the process.
    return {.max_piece_bytes = 50000, .pull_id = descriptor_.pull_id};
  }

  TestMemory memory_{1 << 20};
  std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<Serving> serving_;
  UcxDescriptor descriptor_;
};

TEST_F(ProtocolTest, AnUnknownPullIsNotFoundAndTheConnectionMayTryAnother) {
  RawPeer peer;
  peer.Connect(transport_->address());
  wire::Hello hello = Hello();
  hello.pull_id[3] ^= 1;
  peer.Send(hello);
  EXPECT_EQ(peer.NextAs<wire::Error>().status.code(), absl::StatusCode::kNotFound);
  peer.Send(Hello());
  EXPECT_EQ(peer.NextAs<wire::Welcome>().image_bytes, kImageBytes);
}

TEST_F(ProtocolTest, AReceiverOfAnotherVersionIsToldSo) {
  RawPeer peer;
  peer.Connect(transport_->address());
  wire::Hello hello = Hello();
  hello.min_version = 7;
  hello.max_version = 9;
  peer.Send(hello);
  EXPECT_EQ(peer.NextAs<wire::Error>().status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProtocolTest, ARequestPastTheEndIsRefusedAndTheNextIsServed) {
  RawPeer peer;
  peer.Connect(transport_->address());
  peer.Send(Hello());
  peer.NextAs<wire::Welcome>();
  peer.Send(wire::Request{.id = 1, .offset = kImageBytes, .bytes = 1});
  peer.Send(wire::Request{.id = 2, .offset = ~uint64_t{0}, .bytes = 2});
  for (uint64_t id : {1, 2}) {
    const wire::Error error = peer.NextAs<wire::Error>();
    EXPECT_EQ(error.request_id, id);
    EXPECT_EQ(error.status.code(), absl::StatusCode::kInvalidArgument);
  }
  peer.Send(wire::Request{.id = 3, .offset = 0, .bytes = kImageBytes});
  EXPECT_TRUE(peer.WaitForData(kImageBytes));
}

// Whatever a port scanner or a client of another protocol writes. Bytes behind UCX's own magic are another
// matter: UCX trusts them (see the security page).
TEST_F(ProtocolTest, BytesThatAreNotUcxsDoNoHarm) {
  const SocketAddress address = *Resolve(*ParseHostPort(transport_->address()));
  std::mt19937_64 random(7);
  for (size_t size : {0, 1, 7, 8, 9, 64, 4096, 100000}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(connect(fd, address.get(), address.length), 0);
    // A listener that hangs up early makes the later bytes fail, which is as good.
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  ExpectServed();
}

TEST_F(ProtocolTest, AReceiverThatBreaksTheProtocolLosesItsConnectionAndOnlyThat) {
  const std::vector<std::function<void(RawPeer&)>> offences = {
      [](RawPeer& peer) { peer.SendBytes(wire::kControlId, "\x63garbage"); },
      [](RawPeer& peer) { peer.SendBytes(wire::kControlId, std::string(3, '\x01')); },
      [](RawPeer& peer) { peer.SendBytes(wire::kDataId, "x"); },
      [](RawPeer& peer) {
        peer.SendBytes(wire::kDataId, wire::EncodeDataHeader({.request_id = 1, .offset = 0}));
      },
      [](RawPeer& peer) {
        peer.Send(wire::Welcome{.max_requests = 1, .max_request_bytes = 1, .image_bytes = 1});
      },
      [](RawPeer& peer) { peer.Send(wire::Error{.request_id = 1, .status = absl::InternalError("")}); },
      [this](RawPeer& peer) {
        peer.Send(Hello());
        peer.NextAs<wire::Welcome>();
        peer.Send(Hello());
      },
  };
  for (size_t i = 0; i < offences.size(); ++i) {
    RawPeer peer;
    peer.Connect(transport_->address());
    offences[i](peer);
    EXPECT_TRUE(peer.ClosedByPeer()) << "offence " << i;
  }
  ExpectServed();
}

// A pull from a RawPeer, as far as its WELCOME.
class LyingSourceTest : public ProtocolTest {
 protected:
  absl::Status Connect(const wire::Welcome& welcome) {
    const UcxDescriptor descriptor{.address = source_.Listen(), .image_bytes = kImageBytes};
    absl::Status status;
    std::thread connecting([&] {
      absl::StatusOr<std::unique_ptr<Pull>> pull =
          transport_->Connect(RequestContext::Background(absl::Seconds(30)), *EncodeDescriptor(descriptor));
      status = pull.status();
      if (pull.ok()) {
        pull_ = *std::move(pull);
      }
    });
    source_.NextAs<wire::Hello>();
    source_.Send(welcome);
    connecting.join();
    return status;
  }

  void FetchIntoEnd() {
    pull_->Fetch(10, {memory_.span(900000, 1000)}, absl::InfiniteFuture(), done_.Expect());
  }

  RawPeer source_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};

constexpr wire::Welcome kWelcome = {
    .max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

TEST_F(LyingSourceTest, AWelcomeToAnotherImageIsRefused) {
  wire::Welcome welcome = kWelcome;
  welcome.image_bytes += 1;
  EXPECT_FALSE(Connect(welcome).ok());
}

TEST_F(LyingSourceTest, PiecesOutsideOfTheirRequestAreNotReceived) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  const auto request = source_.NextAs<wire::Request>();
  EXPECT_EQ(request.offset, 10u);
  EXPECT_EQ(request.bytes, 1000u);
  source_.SendPiece({.request_id = request.id, .offset = 900}, memory_.span(0, 111));
  ASSERT_TRUE(done_.Wait());
  EXPECT_FALSE(done_.statuses()[0].ok());
  EXPECT_NE(done_.statuses()[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(HoldsOnly(memory_.span(900000, 2000), std::byte{0}));
}

TEST_F(LyingSourceTest, APieceThatComesTwiceBreaksThePull) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  const auto request = source_.NextAs<wire::Request>();
  source_.SendPiece({.request_id = request.id, .offset = 10}, memory_.span(0, 600));
  source_.SendPiece({.request_id = request.id, .offset = 609}, memory_.span(0, 401));
  ASSERT_TRUE(done_.Wait());
  EXPECT_FALSE(done_.statuses()[0].ok());
}

TEST_F(LyingSourceTest, PiecesMayComeInAnyOrder) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  const auto request = source_.NextAs<wire::Request>();
  source_.SendPiece({.request_id = request.id, .offset = 610}, memory_.span(610, 400));
  source_.SendPiece({.request_id = request.id, .offset = 10}, memory_.span(10, 600));
  ASSERT_TRUE(done_.Wait());
  EXPECT_TRUE(done_.statuses()[0].ok()) << done_.statuses()[0];
  EXPECT_TRUE(HoldsPattern(memory_.span(900000, 1000), 10));
}

TEST_F(LyingSourceTest, PiecesMayComeByRendezvous) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  pull_->Fetch(0, {memory_.span(900000, kImageBytes)}, absl::InfiniteFuture(), done_.Expect());
  const auto request = source_.NextAs<wire::Request>();
  // A RawPeer's worker sends from 16 KiB on by rendezvous.
  source_.SendPiece({.request_id = request.id, .offset = 0}, memory_.span(0, kImageBytes));
  ASSERT_TRUE(done_.Wait());
  EXPECT_TRUE(done_.statuses()[0].ok()) << done_.statuses()[0];
  EXPECT_TRUE(HoldsPattern(memory_.span(900000, kImageBytes), 0));
}

TEST_F(LyingSourceTest, APieceThatNobodyAskedForBreaksThePull) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  const auto request = source_.NextAs<wire::Request>();
  source_.SendPiece({.request_id = request.id + 1, .offset = 10}, memory_.span(0, 100));
  ASSERT_TRUE(done_.Wait());
  EXPECT_FALSE(done_.statuses()[0].ok());
}

TEST_F(LyingSourceTest, ARefusedRequestFailsItsFetchAndNotThePull) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  auto request = source_.NextAs<wire::Request>();
  source_.Send(wire::Error{.request_id = request.id, .status = absl::InvalidArgumentError("no")});
  ASSERT_TRUE(done_.Wait());
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kInvalidArgument);
  FetchIntoEnd();
  request = source_.NextAs<wire::Request>();
  source_.SendPiece({.request_id = request.id, .offset = 10}, memory_.span(10, 1000));
  ASSERT_TRUE(done_.Wait());
  EXPECT_TRUE(done_.statuses()[1].ok()) << done_.statuses()[1];
}

TEST_F(LyingSourceTest, ASourceThatNeverSaysByeDoesNotHoldUpTheEnd) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  source_.NextAs<wire::Request>();
  pull_.reset();
  EXPECT_EQ(done_.completed(), 1u);
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kCancelled);
  source_.NextAs<wire::Bye>();
  EXPECT_TRUE(source_.ClosedByPeer());
}

TEST(UcxTransportOptions, WhatCannotWorkIsRefused) {
  EXPECT_EQ(UcxTransport::Create({.listen = "nonsense"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UcxTransport::Create({.tls = "no_such_transport"}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(UcxTransport::Create({.requests_in_flight = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(UcxTransportOptions, AnAddressThatIsTakenIsUnavailable) {
  auto first = *UcxTransport::Create({});
  EXPECT_EQ(UcxTransport::Create({.listen = first->address()}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(UcxTransportOptions, WithoutAnAddressATransportOnlyReceives) {
  auto transport = *UcxTransport::Create({.listen = ""});
  EXPECT_EQ(transport->address(), "");
  auto image = std::make_shared<InPlaceImage>(std::vector<HostSpan>{});
  EXPECT_EQ(transport->Serve(image).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(UcxTransportOptions, TheAdvertisedHostIsInTheDescriptor) {
  auto transport = *UcxTransport::Create({.listen = "0.0.0.0:0", .advertise_host = "127.0.0.1"});
  auto serving = transport->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{}));
  EXPECT_THAT(DecodeDescriptor((*serving)->descriptor())->address, testing::StartsWith("127.0.0.1:"));
}

}  // namespace
}  // namespace tensorcast::transport
