// Measures ways of moving a pool's bytes over one TCP connection, beside the way that the lane tcp moves
// them:
//   epoll      sendmsg of four pieces of 256 KiB, recv of 256 KiB, on epoll's word: as the lane does
//   zerocopy   the same, sent by MSG_ZEROCOPY; no more than 4 MiB wait for the kernel's word
//   uring      io_uring: the same sizes, one operation under way at each end, one system call for each
//   uring-zc   the same, sent by SENDMSG_ZC
// Sender and receiver are processes of their own, over loopback or in two network namespaces; the bytes are
// not read, so a gain here is the max that a pull can have. Runs take turns; the ratios are of pairs.
//
//   build/release/bin/socket_ways [--runs 15] [--mib 4096] [--namespaces A,B --address 198.18.78.2]
//
// io_uring by its system calls, so that this needs no library.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr size_t kStepBytes = size_t{256} << 10;
constexpr size_t kStepsACall = 4;
constexpr size_t kPoolBytes = size_t{256} << 20;  // more than caches hold
constexpr size_t kMaxUnconfirmed = size_t{4} << 20;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "socket_ways: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}
int64_t Must(int64_t result, const char* what) {
  if (result < 0) Die(what);
  return result;
}

struct Options {
  int runs = 15;
  uint64_t bytes = uint64_t{4096} << 20;
  std::vector<std::string> namespaces;  // of the sender and the receiver; empty: this one
  std::string address = "127.0.0.1";    // of the receiver
};

char* MakePool() {
  void* const pool =
      mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (pool == MAP_FAILED) Die("mmap");
  std::memset(pool, 7, kPoolBytes);
  return static_cast<char*>(pool);
}

// The next call's pieces, from the pool's `at` on.
size_t NextPieces(char* pool, uint64_t at, uint64_t left, std::array<iovec, kStepsACall>& pieces) {
  size_t count = 0;
  for (uint64_t taken = 0; count < kStepsACall && taken < left; ++count) {
    const uint64_t from = (at + taken) % kPoolBytes;
    const auto bytes = std::min({uint64_t{kStepBytes}, left - taken, kPoolBytes - from});
    pieces[count] = {pool + from, bytes};
    taken += bytes;
  }
  return count;
}

// ---- epoll, with copies or without ----

void Await(int epoll, uint32_t events, int socket) {
  epoll_event event{.events = events, .data = {}};
  Must(epoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event), "epoll_ctl");
  Must(epoll_wait(epoll, &event, 1, -1), "epoll_wait");
}

// Reads what the kernel says of sends by reference; returns how many it is done with, and adds those of them
// that it copied after all.
uint32_t TakeConfirmed(int socket, uint64_t& copied) {
  uint32_t confirmed = 0;
  for (;;) {
    std::array<char, 128> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket, &message, MSG_ERRQUEUE) < 0) return confirmed;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      sock_extended_err word;
      std::memcpy(&word, CMSG_DATA(part), sizeof(word));
      if (word.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      const uint32_t sends = word.ee_data - word.ee_info + 1;
      confirmed += sends;
      if ((word.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) copied += sends;
    }
  }
}

uint64_t SendByEpoll(int socket, uint64_t total, bool by_reference) {
  char* const pool = MakePool();
  const int one = 1;
  if (by_reference) Must(setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)), "SO_ZEROCOPY");
  const int epoll = static_cast<int>(Must(epoll_create1(0), "epoll_create"));
  epoll_event event{.events = 0, .data = {}};
  Must(epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event), "epoll_ctl");
  std::map<uint32_t, uint64_t> waiting;  // bytes, by the number of the send
  uint32_t sends = 0, confirmed = 0;
  uint64_t unconfirmed = 0, copied = 0;
  const auto take = [&] {
    for (uint32_t done = TakeConfirmed(socket, copied); done > 0; --done, ++confirmed) {
      unconfirmed -= waiting[confirmed];
      waiting.erase(confirmed);
    }
  };
  for (uint64_t sent = 0; sent < total;) {
    if (unconfirmed >= kMaxUnconfirmed) {
      Await(epoll, 0, socket);  // the kernel's word is an error to epoll, of which it always tells
      take();
      continue;
    }
    std::array<iovec, kStepsACall> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = NextPieces(pool, sent, total - sent, pieces);
    const ssize_t moved = sendmsg(socket, &message, MSG_NOSIGNAL | (by_reference ? MSG_ZEROCOPY : 0));
    if (moved < 0 && errno != EAGAIN && errno != ENOBUFS) Die("sendmsg");
    if (moved < 0) {
      Await(epoll, EPOLLOUT, socket);
    } else {
      sent += static_cast<uint64_t>(moved);
      if (by_reference) unconfirmed += waiting[sends++] = static_cast<uint64_t>(moved);
    }
    if (by_reference) take();
  }
  while (confirmed < sends) {
    Await(epoll, 0, socket);
    take();
  }
  return sends == 0 ? 0 : copied * 100 / sends;
}

void ReceiveByEpoll(int socket, uint64_t total) {
  char* const pool = MakePool();
  const int epoll = static_cast<int>(Must(epoll_create1(0), "epoll_create"));
  epoll_event event{.events = EPOLLIN, .data = {}};
  Must(epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event), "epoll_ctl");
  for (uint64_t received = 0; received < total;) {
    const uint64_t from = received % kPoolBytes;
    const ssize_t moved = recv(socket, pool + from, std::min(uint64_t{kStepBytes}, kPoolBytes - from), 0);
    if (moved == 0 || (moved < 0 && errno != EAGAIN)) Die("recv");
    if (moved < 0) {
      Must(epoll_wait(epoll, &event, 1, -1), "epoll_wait");
    } else {
      received += static_cast<uint64_t>(moved);
    }
  }
}

// ---- io_uring: a ring with one operation under way ----

class Ring {
 public:
  Ring() {
    io_uring_params params{};
    // One thread submits, and the kernel completes operations only while that thread is in io_uring_enter.
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    fd_ = static_cast<int>(Must(syscall(SYS_io_uring_setup, 64, &params), "io_uring_setup"));
    // Both rings are in one mapping (IORING_FEAT_SINGLE_MMAP, since Linux 5.4).
    char* const rings = Map(std::max(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                     params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe)),
                            IORING_OFF_SQ_RING);
    entries_ =
        reinterpret_cast<io_uring_sqe*>(Map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    submitted_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + params.sq_off.tail);
    submit_mask_ = *reinterpret_cast<uint32_t*>(rings + params.sq_off.ring_mask);
    order_ = reinterpret_cast<uint32_t*>(rings + params.sq_off.array);
    taken_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + params.cq_off.head);
    completed_ = reinterpret_cast<std::atomic<uint32_t>*>(rings + params.cq_off.tail);
    complete_mask_ = *reinterpret_cast<uint32_t*>(rings + params.cq_off.ring_mask);
    results_ = reinterpret_cast<io_uring_cqe*>(rings + params.cq_off.cqes);
  }

  void Submit(const io_uring_sqe& operation) {
    const uint32_t tail = submitted_->load(std::memory_order_relaxed);
    entries_[tail & submit_mask_] = operation;
    order_[tail & submit_mask_] = tail & submit_mask_;
    // After the entry: the kernel reads entries up to the tail.
    submitted_->store(tail + 1, std::memory_order_release);
    ++unsubmitted_;
  }
  // The next result; submits what was not yet in the same system call.
  io_uring_cqe Next() {
    const uint32_t head = taken_->load(std::memory_order_relaxed);
    while (head == completed_->load(std::memory_order_acquire)) {
      Must(syscall(SYS_io_uring_enter, fd_, unsubmitted_, 1, IORING_ENTER_GETEVENTS, nullptr, 0),
           "io_uring_enter");
      unsubmitted_ = 0;
    }
    const io_uring_cqe result = results_[head & complete_mask_];
    // After the copy: the kernel may use the place again.
    taken_->store(head + 1, std::memory_order_release);
    return result;
  }

 private:
  char* Map(size_t bytes, int64_t what) const {
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what);
    if (mapped == MAP_FAILED) Die("mapping a ring");
    return static_cast<char*>(mapped);
  }

  int fd_ = -1;
  io_uring_sqe* entries_;
  std::atomic<uint32_t>*submitted_, *taken_, *completed_;
  uint32_t submit_mask_, complete_mask_;
  uint32_t* order_;
  io_uring_cqe* results_;
  uint32_t unsubmitted_ = 0;
};

uint64_t SendByRing(int socket, uint64_t total, bool by_reference) {
  char* const pool = MakePool();
  Ring ring;
  uint64_t sends = 0, copied = 0, unconfirmed = 0;
  // Takes results until a send has moved its bytes, or (by_reference) few enough wait for the kernel's word.
  const auto take = [&](bool until_moved, uint64_t max_unconfirmed) -> uint64_t {
    uint64_t moved = 0;
    while (until_moved || unconfirmed > max_unconfirmed) {
      const io_uring_cqe result = ring.Next();
      if ((result.flags & IORING_CQE_F_NOTIF) != 0) {
        --unconfirmed;
        if ((static_cast<uint32_t>(result.res) & IORING_NOTIF_USAGE_ZC_COPIED) != 0) ++copied;
        continue;
      }
      errno = -result.res;
      moved = static_cast<uint64_t>(Must(result.res < 0 ? -1 : result.res, "sending"));
      // A second result follows when the kernel no longer reads the bytes.
      if ((result.flags & IORING_CQE_F_MORE) != 0) ++unconfirmed;
      until_moved = false;
    }
    return moved;
  };
  for (uint64_t sent = 0; sent < total;) {
    std::array<iovec, kStepsACall> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = NextPieces(pool, sent, total - sent, pieces);
    io_uring_sqe operation{};
    operation.opcode = by_reference ? IORING_OP_SENDMSG_ZC : IORING_OP_SENDMSG;
    operation.fd = socket;
    operation.addr = reinterpret_cast<uint64_t>(&message);
    operation.len = 1;
    operation.msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
    operation.ioprio = by_reference ? IORING_SEND_ZC_REPORT_USAGE : 0;
    ring.Submit(operation);
    ++sends;
    sent += take(/*until_moved=*/true, kMaxUnconfirmed / (kStepBytes * kStepsACall));
  }
  take(/*until_moved=*/false, 0);
  return by_reference ? copied * 100 / sends : 0;
}

void ReceiveByRing(int socket, uint64_t total) {
  char* const pool = MakePool();
  Ring ring;
  for (uint64_t received = 0; received < total;) {
    const uint64_t from = received % kPoolBytes;
    io_uring_sqe operation{};
    operation.opcode = IORING_OP_RECV;
    operation.fd = socket;
    operation.addr = reinterpret_cast<uint64_t>(pool + from);
    operation.len = static_cast<uint32_t>(std::min(uint64_t{kStepBytes}, kPoolBytes - from));
    ring.Submit(operation);
    const int moved = ring.Next().res;
    errno = -moved;
    if (moved <= 0) Die("receiving");
    received += static_cast<uint64_t>(moved);
  }
}

// ---- runs ----

struct Way {
  const char* name;
  bool ring;
  bool by_reference;
};
constexpr std::array<Way, 4> kWays = {
    {{"epoll", false, false}, {"zerocopy", false, true}, {"uring", true, false}, {"uring-zc", true, true}}};

struct Outcome {
  double seconds = 0;      // of the receiver, from the connection on
  double cpu_seconds = 0;  // of this end
  uint64_t copied = 0;     // percent of the sends by reference that the kernel copied after all
};

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

void Enter(const Options& options, size_t host) {
  if (options.namespaces.empty()) return;
  const int space = open(("/run/netns/" + options.namespaces[host]).c_str(), O_RDONLY | O_CLOEXEC);
  Must(space, "the network namespace");
  Must(setns(space, CLONE_NEWNET), "setns");
}

// In a process of its own, which tells through the pipe.
template <typename Work>
pid_t Fork(int pipe, Work work) {
  const auto child = static_cast<pid_t>(Must(fork(), "fork"));
  if (child != 0) return child;
  const Outcome outcome = work();
  Must(write(pipe, &outcome, sizeof(outcome)), "write");
  _exit(0);
}

Outcome Send(const Options& options, const Way& way, uint16_t port) {
  Enter(options, 0);
  const int socket = static_cast<int>(Must(::socket(AF_INET, SOCK_STREAM, 0), "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, options.address.c_str(), &address.sin_addr);
  Must(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), "connect");
  if (!way.ring) Must(fcntl(socket, F_SETFL, O_NONBLOCK), "fcntl");
  const double before = CpuSeconds();
  Outcome outcome;
  outcome.copied = way.ring ? SendByRing(socket, options.bytes, way.by_reference)
                            : SendByEpoll(socket, options.bytes, way.by_reference);
  outcome.cpu_seconds = CpuSeconds() - before;
  return outcome;
}

// One transfer. The kernel's part of it is counted where it runs, which is in one of the two processes.
Outcome Run(const Options& options, const Way& way) {
  std::array<int, 2> sender, receiver, ports;
  for (auto* one : {&sender, &receiver, &ports}) Must(pipe(one->data()), "pipe");
  const pid_t receives = Fork(receiver[1], [&] {
    Enter(options, 1);
    const int listener = static_cast<int>(Must(socket(AF_INET, SOCK_STREAM, 0), "socket"));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    Must(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), "bind");
    Must(listen(listener, 1), "listen");
    socklen_t length = sizeof(address);
    Must(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
    const uint16_t port = ntohs(address.sin_port);
    Must(write(ports[1], &port, sizeof(port)), "write");
    const int socket = static_cast<int>(Must(accept(listener, nullptr, nullptr), "accept"));
    if (!way.ring) Must(fcntl(socket, F_SETFL, O_NONBLOCK), "fcntl");
    const double before = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    way.ring ? ReceiveByRing(socket, options.bytes) : ReceiveByEpoll(socket, options.bytes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return Outcome{.seconds = took.count(), .cpu_seconds = CpuSeconds() - before};
  });
  uint16_t port = 0;
  Must(read(ports[0], &port, sizeof(port)), "read");
  const pid_t sends = Fork(sender[1], [&] { return Send(options, way, port); });
  for (const pid_t child : {receives, sends}) {
    int status = 0;
    Must(waitpid(child, &status, 0), "waitpid");
    if (status != 0) {
      std::fprintf(stderr, "socket_ways: %s did not work here\n", way.name);
      std::exit(1);
    }
  }
  Outcome sent, received;
  Must(read(sender[0], &sent, sizeof(sent)), "read");
  Must(read(receiver[0], &received, sizeof(received)), "read");
  for (auto* one : {&sender, &receiver, &ports}) {
    for (const int end : *one) close(end);
  }
  return {.seconds = received.seconds,
          .cpu_seconds = sent.cpu_seconds + received.cpu_seconds,
          .copied = sent.copied};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The 95 % interval of a median, by ranks.
std::array<double, 2> Interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  // 1.96 standard deviations of the rank, of sqrt(n) / 2 each: the rank of a median is binomial.
  const double reach = 0.98 * std::sqrt(count);
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(count / 2 - reach)));
  return {values[low], values[values.size() - 1 - low]};
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name == "--runs") options.runs = std::atoi(value.c_str());
    if (name == "--mib") options.bytes = std::strtoull(value.c_str(), nullptr, 10) << 20;
    if (name == "--address") options.address = value;
    if (name == "--namespaces") {
      options.namespaces = {value.substr(0, value.find(',')), value.substr(value.find(',') + 1)};
    }
  }
  std::array<std::vector<double>, kWays.size()> rates, costs, faster, cheaper;
  std::array<uint64_t, kWays.size()> copied{};
  const double gigabytes = static_cast<double>(options.bytes) / 1e9;
  for (int run = -1; run < options.runs; ++run) {  // the first warms up
    std::array<Outcome, kWays.size()> outcomes;
    for (size_t i = 0; i < kWays.size(); ++i) {
      const size_t way = run % 2 == 0 ? i : kWays.size() - 1 - i;
      outcomes[way] = Run(options, kWays[way]);
    }
    if (run < 0) continue;
    for (size_t way = 0; way < kWays.size(); ++way) {
      rates[way].push_back(gigabytes / outcomes[way].seconds);
      costs[way].push_back(outcomes[way].cpu_seconds / gigabytes);
      faster[way].push_back(outcomes[0].seconds / outcomes[way].seconds);
      cheaper[way].push_back(outcomes[way].cpu_seconds / outcomes[0].cpu_seconds);
      copied[way] = std::max(copied[way], outcomes[way].copied);
    }
  }
  for (size_t way = 0; way < kWays.size(); ++way) {
    const std::array<double, 2> fast = Interval(faster[way]), cheap = Interval(cheaper[way]);
    std::printf("%-9s %6.2f GB/s  %5.2f (%.2f-%.2f) of epoll   %.3f s/GB  %5.2f (%.2f-%.2f) of epoll",
                kWays[way].name, Median(rates[way]), Median(faster[way]), fast[0], fast[1],
                Median(costs[way]), Median(cheaper[way]), cheap[0], cheap[1]);
    if (kWays[way].by_reference) {
      std::printf("   copied by the kernel all the same: %d %%", static_cast<int>(copied[way]));
    }
    std::printf("\n");
  }
  return 0;
}
