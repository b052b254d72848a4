// A deployment without configured access: what each user of the host can do with it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/e2e/listening_ports.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uid_t kNobody = 65534;

// What this process could do as another user, with these groups only: the paths below `folder` that it can
// open or connect to.
std::string ReachedBy(uid_t user, gid_t group, const std::vector<std::string>& paths) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "pipe2 failed";
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setresgid(group, group, group) != 0 ||
        setresuid(user, user, user) != 0) {
      _exit(1);
    }
    for (const std::string& path : paths) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
      const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
      if (connected || open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK) >= 0) {
        const std::string line = path + "\n";
        if (write(ends[1], line.data(), line.size()) < 0) _exit(1);
      }
    }
    _exit(0);
  }
  close(ends[1]);
  std::string reached;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) reached.append(buffer, got);
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? reached : "the child could not become that user";
}

std::string GroupName(gid_t id) {
  const group* const found = getgrgid(id);
  return found == nullptr ? "" : found->gr_name;
}

class DefaultDeployment : public E2eTest {
 protected:
  // The commands of the README, on one host: what is configured is where things are, and how large. The umask
  // is open, so that only the program's own modes protect its files.
  void StartDeployment(const std::vector<std::string>& daemon_settings = {}) {
    const mode_t before = umask(0);
    Start(store_, "global-store",
          {"global_store.listen=unix:" + Path("store/store.sock"),
           "global_store.metadata_path=" + Path("store/meta.db")});
    std::vector<std::string> settings = {"daemon.state_dir=" + Path("node"), "daemon.host_pool=192MiB",
                                         "daemon.global_store=unix:" + Path("store/store.sock"),
                                         "daemon.import_roots=" + Path("models")};
    settings.insert(settings.end(), daemon_settings.begin(), daemon_settings.end());
    fs::create_directories(Path("models"));
    Start(daemon_, "daemon", settings);
    umask(before);
  }

  void Start(std::unique_ptr<Process>& process, const std::string& role,
             const std::vector<std::string>& settings) {
    std::vector<std::string> argv = {DefaultOptions().binary, role};
    for (const std::string& setting : settings) argv.insert(argv.end(), {"--set", setting});
    TC_ASSERT_OK_AND_ASSIGN(
        process,
        Process::Start({.argv = std::move(argv), .log_path = Path(role + ".log"), .ready_pipe = true}));
    TC_ASSERT_OK(process->WaitReady(SteadyNow() + kStepTimeout).status());
  }

  // The program as another user, with this group only.
  absl::StatusOr<std::unique_ptr<Process>> StartAs(uid_t user, gid_t group,
                                                   std::vector<std::string> arguments) {
    const std::string program = Path("tensorcast");  // where every user can run it
    if (!fs::exists(program)) {
      fs::copy_file(DefaultOptions().binary, program);
      fs::permissions(program, fs::perms(0755));
    }
    std::vector<std::string> argv = {"/usr/bin/setpriv", absl::StrCat("--reuid=", user),
                                     absl::StrCat("--regid=", group), "--clear-groups", program};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return Process::Start({.argv = std::move(argv), .log_path = Path("theirs.log")});
  }
  int RunAs(uid_t user, gid_t group, std::vector<std::string> arguments) {
    const auto process = StartAs(user, group, std::move(arguments));
    return process.ok() ? (*process)->Wait(SteadyNow() + kStepTimeout).value_or(-1) : -1;
  }

  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
  std::string Daemon() const { return "unix:" + Path("node/daemon.sock"); }

  // Everything that the two servers made.
  std::vector<std::string> StatePaths() const {
    std::vector<std::string> paths;
    for (const char* folder : {"store", "node"}) {
      paths.push_back(Path(folder));
      for (const auto& entry : fs::recursive_directory_iterator(Path(folder))) paths.push_back(entry.path());
    }
    return paths;
  }

  std::unique_ptr<Process> store_;
  std::unique_ptr<Process> daemon_;
};

TEST_F(DefaultDeployment, DefaultDeployment_ServesWithoutTcpPort) {
  ASSERT_NO_FATAL_FAILURE(StartDeployment());
  const std::string model = MakeModel("models/model.safetensors", 8 << 20);
  const CommandResult put = RunCommand({"put", model, "--key", "m", "--durable", "--daemon", Daemon()});
  ASSERT_EQ(put.exit_code, 0) << put.output;
  EXPECT_EQ(RunCommand({"get", "m", "--daemon", Daemon()}).exit_code, 0);
  EXPECT_THAT(ListeningPorts(store_->pid()), IsEmpty());
  EXPECT_THAT(ListeningPorts(daemon_->pid()), IsEmpty());
}

TEST_F(DefaultDeployment, DefaultDeployment_OtherUserCannotReadOrConnect) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_NO_FATAL_FAILURE(StartDeployment());
  const std::string model = MakeModel("models/model.safetensors", 8 << 20);
  ASSERT_EQ(RunCommand({"put", model, "--key", "m", "--durable", "--daemon", Daemon()}).exit_code, 0);
  for (const std::string& path : StatePaths()) {
    struct stat found{};
    ASSERT_EQ(lstat(path.c_str(), &found), 0) << path;
    EXPECT_EQ(found.st_mode & 0077, 0u) << path << absl::StrCat(" has mode 0", absl::Hex(found.st_mode));
  }
  // Not by the modes of the folders alone.
  ASSERT_EQ(chmod(directory_->path().c_str(), 0755), 0);
  EXPECT_EQ(ReachedBy(kNobody, kNobody, StatePaths()), "");
  for (const char* folder : {"store", "node"}) ASSERT_EQ(chmod(Path(folder).c_str(), 0755), 0);
  std::vector<std::string> inside = StatePaths();
  std::erase_if(inside,
                [&](const std::string& path) { return path == Path("store") || path == Path("node"); });
  EXPECT_EQ(ReachedBy(kNobody, kNobody, inside), "");
}

// With the real program: list, delete, import root's files, join with a daemon that would read them.
TEST_F(DefaultDeployment, DefaultDeployment_CommandsOfOtherUserFail) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_NO_FATAL_FAILURE(StartDeployment());
  const std::string model = MakeModel("models/model.safetensors", 8 << 20);
  ASSERT_EQ(RunCommand({"put", model, "--key", "m", "--daemon", Daemon()}).exit_code, 0);
  ASSERT_EQ(chmod(directory_->path().c_str(), 0755), 0);
  fs::create_directory(Path("theirs"));
  ASSERT_EQ(chown(Path("theirs").c_str(), kNobody, kNobody), 0);

  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"ls"}, {"rm", "m", "--force"}, {"put", "/etc/shadow"}, {"get", "m"}, {"status"}}) {
    std::vector<std::string> command = arguments;
    command.insert(command.end(), {"--daemon", Daemon(), "--set", "client.connect_timeout=200ms"});
    EXPECT_EQ(RunAs(kNobody, kNobody, command), 1) << arguments[0];
  }
  // Their daemon runs, but stays alone.
  TC_ASSERT_OK_AND_ASSIGN(const auto joiner,
                          StartAs(kNobody, kNobody,
                                  {"daemon", "--set", "daemon.state_dir=" + Path("theirs/node"), "--set",
                                   "daemon.host_pool=192MiB", "--set", "daemon.name=theirs", "--set",
                                   "daemon.global_store=unix:" + Path("store/store.sock")}));
  const SteadyTime deadline = SteadyNow() + kStepTimeout;
  while (SteadyNow() < deadline &&
         FileTail(Path("theirs.log"), 100).find("serving without the global store") == std::string::npos) {
    ASSERT_TRUE(joiner->running()) << FileTail(Path("theirs.log"), 20);
    absl::SleepFor(absl::Milliseconds(20));
  }
  const CommandResult status = RunCommand({"status", "--daemon", Daemon()});
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_THAT(status.output, Not(HasSubstr("theirs")));
  EXPECT_EQ(joiner->Stop(kStepTimeout).value_or(-1), 0);
  EXPECT_EQ(RunCommand({"get", "m", "--daemon", Daemon()}).exit_code, 0);
}

// handle_groups opens the clients' two sockets of the daemon to a group, and nothing else of it.
TEST_F(DefaultDeployment, HandleGroups_OpenOnlyClientSocketsToGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string theirs = GroupName(kNobody);
  const std::string another = GroupName(1);
  if (theirs.empty() || another.empty()) GTEST_SKIP() << "there are no groups to try it with";
  for (const std::string& groups : {theirs, theirs + "," + another}) {
    ASSERT_NO_FATAL_FAILURE(StartDeployment({"daemon.handle_groups=" + groups}));
    ASSERT_EQ(chmod(directory_->path().c_str(), 0755), 0);
    EXPECT_EQ(ReachedBy(kNobody, kNobody, {Path("node/client.sock")}), Path("node/client.sock") + "\n");
    EXPECT_EQ(ReachedBy(kNobody, kNobody, {Path("node/handles.sock")}), Path("node/handles.sock") + "\n");
    std::vector<std::string> others = StatePaths();
    std::erase_if(others, [](const std::string& path) {
      return path.ends_with("/client.sock") || path.ends_with("/handles.sock");
    });
    EXPECT_EQ(ReachedBy(kNobody, kNobody, others), "");
    // A user in none of the groups is refused, at the latest by the daemon.
    const std::string clients = "unix:" + Path("node/client.sock");
    EXPECT_EQ(RunAs(kNobody, 2, {"ls", "--daemon", clients, "--set", "client.connect_timeout=200ms"}), 1);
    EXPECT_EQ(RunAs(kNobody, kNobody, {"ls", "--daemon", clients}), 0);
    // A user that is let in has the client's rights, and not the operator's.
    EXPECT_EQ(RunAs(kNobody, kNobody, {"key", "rm", "no-such-key", "--daemon", clients}), 1);
    EXPECT_THAT(FileTail(Path("daemon.log"), 20),
                HasSubstr("call GlobalStore/DeleteKey: the call requires the role operator"));
    daemon_->Stop(kStepTimeout).IgnoreError();
    store_->Stop(kStepTimeout).IgnoreError();
  }
}

TEST_F(DefaultDeployment, StateFolderWritableByOthers_IsRefused) {
  fs::create_directory(Path("shared"));
  std::ofstream(Path("shared/theirs")) << "x";
  ASSERT_EQ(chmod(Path("shared").c_str(), 01777), 0);
  const CommandResult result = RunCommand(
      {"daemon", "--set", "daemon.state_dir=" + Path("shared"), "--set", "daemon.host_pool=192MiB"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("other users may write to the folder"));
}

TEST_F(DefaultDeployment, DaemonOnWildcardAddress_IsKnownByAdvertisedAddress) {
  ASSERT_NO_FATAL_FAILURE(
      StartDeployment({"daemon.listen=0.0.0.0:0", "daemon.advertise=localhost:0", "security.insecure=true"}));
  const std::set<int> ports = ListeningPorts(daemon_->pid());
  ASSERT_EQ(ports.size(), 1u);
  const CommandResult status = RunCommand({"status", "--json", "--daemon", Daemon()});
  EXPECT_THAT(status.output, HasSubstr(absl::StrCat("\"localhost:", *ports.begin(), "\"")));
}

// What `status` says of each endpoint, and the log of the start before it.
TEST_F(DefaultDeployment, Status_SaysWhichCallersMayDoWhatOnEachEndpoint) {
  ASSERT_NO_FATAL_FAILURE(StartDeployment({"daemon.tcp_listen=127.0.0.1:0", "security.insecure=true"}));
  const std::string own = absl::StrCat("(uid ", geteuid(), ")");
  const std::string said = RunCommand({"status", "--daemon", Daemon()}).output;
  std::string log = FileTail(Path("daemon.log"), 100);
  EXPECT_THAT(FileTail(Path("global-store.log"), 100),
              AllOf(HasSubstr("access: unix:" + Path("store/store.sock")), HasSubstr("mode 0600: operator")));
  EXPECT_THAT(said, HasSubstr("security   NONE on its TCP ports (security.insecure)"));
  for (const std::string& text : {said, log}) {
    EXPECT_THAT(text,
                AllOf(HasSubstr("unix:" + Path("node/daemon.sock") + ": user "), HasSubstr(own),
                      HasSubstr("mode 0600: operator, every call"),
                      HasSubstr("unix:" + Path("node/client.sock") + ": user "), HasSubstr(": client\n")));
    EXPECT_THAT(text, HasSubstr("127.0.0.1:0 (lane tcp): every user of this host, in clear: pulls"));
  }
}

TEST_F(DefaultDeployment, StatusWithoutTcpPort_SaysUnixSocketsOnly) {
  ASSERT_NO_FATAL_FAILURE(StartDeployment());
  EXPECT_THAT(RunCommand({"status", "--daemon", Daemon()}).output,
              AllOf(HasSubstr("security   no TCP port; only unix sockets"), Not(HasSubstr("in clear"))));
}

}  // namespace
}  // namespace tensorcast
