"""Documents as the dashboard's server makes them (cli/dashboard/README.md), of any size and with any name."""

GIB = 1 << 30
TIME = "2026-11-26T18:10:0{}.5Z"


def node(name, zone="a", rack="r1"):
    pools = [
        {"location": {"kind": "LOCATION_KIND_CPU"}, "capacity_bytes": str(512 * GIB), "used_bytes": str(200 * GIB), "pinned_bytes": str(50 * GIB)},
        {"location": {"kind": "LOCATION_KIND_GPU"}, "capacity_bytes": str(80 * GIB), "used_bytes": str(60 * GIB)},
    ]
    return {
        "node_id": f"id-of-{name}",
        "name": name,
        "grpc_address": f"{name}:7445",
        "lanes": ["tcp"],
        "labels": {"zone": zone, "rack": rack},
        "protocol_version": 2,
        "pools": pools,
    }


def rack(name, nodes, late=0):
    return {
        "rack": name,
        "nodes": nodes,
        "draining": 0,
        "unreachable": 0,
        "unhealthy": 0,
        "late": late,
        "protocol_versions": {"2": nodes},
        "pools": [
            {"kind": kind, "pools": nodes, "capacity_bytes": nodes * 512 * GIB, "used_bytes": nodes * 100 * GIB, "pinned_bytes": 0, "evictions": 0, "failed_allocations": 0}
            for kind in ("cpu", "gpu")
        ],
        "received_bytes_per_second": 0,
        "served_bytes_per_second": 0,
        "asked": 0,
    }


def zones(zones=8, racks=50, nodes=25):
    """10,000 nodes."""
    return {
        "zones": [{"zone": f"zone-{z}", "racks": [rack(f"rack-{r:02}", nodes, late=int(r == 7)) for r in range(racks)]} for z in range(zones)],
        "nodes": zones * racks * nodes,
        "not_asked": zones * racks * nodes,
        "status": {
            "cluster": {
                "artifacts": "3",
                "keys": "2",
                "replicas": "5",
                "store_epoch": "7",
                "metadata_store": "etcd",
                "stores": [{"name": "s1", "address": "10.0.0.1:7440", "leads": True}, {"name": "s2", "address": "10.0.0.2:7440"}],
                "leads_for": "90061s",
                "metadata_bytes": "1800000000",
                "metadata_quota_bytes": "2147483648",
            },
            "version": "0.1.0",
            "problems": [],
        },
    }


def transfer(name, filling="other"):
    """One that `name` and a source that fills feed, and that the former bounds."""
    source = {"source_type": "remote", "lane": "tcp", "bytes": str(3 * GIB), "asked": "3s", "joined": TIME.format(1)}
    stage = {"stage": "fetch", "source_type": "remote", "lane": "tcp", "start": TIME.format(1), "end": TIME.format(5), "busy": "3.9s", "bytes": str(3 * GIB)}
    return {
        "transfer_id": f"transfer-of-{name}",
        "artifact_id": f"tc2:{name}",
        "replica_id": "82af4574-f1a2",
        "destination": {"kind": "LOCATION_KIND_GPU"},
        "bytes": str(4 * GIB),
        "bytes_total": str(8 * GIB),
        "queued": TIME.format(0),
        "start": TIME.format(1),
        "end": TIME.format(5),
        "sources": [{**source, "source": name, "grant_id": "g1"}, {**source, "source": filling, "grant_id": "g2", "filling": True, "bytes": str(GIB), "asked": "0.01s"}],
        "stages": [{**stage, "source": name, "grant_id": "g1"}, {**stage, "source": filling, "grant_id": "g2", "busy": "0.01s"}],
    }


def swarm(receivers, source="seed"):
    names = [f"node-{number:03}" for number in range(receivers)]
    feeds = lambda number: source if number == 0 else names[(number - 1) // 2]  # noqa: E731
    return {
        "running": [{"node_id": name, "node": name, "bytes_per_second": 1e9, "transfer": transfer(name)} for name in names],
        "recent": [],
        "edges": [
            {"source": feeds(number), "receiver": name, "lane": "tcp", "transfers": 1, "bytes": GIB, "bytes_per_second": 1e9 / (number + 1), "running": True}
            for number, name in enumerate(names)
        ],
        "nodes": [{"node_id": name, "name": name, "zone": f"zone-{number % 2}", "rack": f"rack-{number // 20}"} for number, name in enumerate([*names, source])],
        "asked": receivers + 1,
        "not_asked": 0,
        "left_out": 0,
        "problems": [],
    }


def every_view(name):
    """A document of each view, in which `name` is the name of whatever has one, and the text of each error."""
    error = {"code": "UNAVAILABLE", "message": name}
    artifact_id = f"tc2:{name}"
    replica = {
        "replica_id": name,
        "artifact_id": artifact_id,
        "node_id": f"id-of-{name}",
        "location": {"kind": "LOCATION_KIND_CPU"},
        "state": "REPLICA_STATE_READY",
        "image_bytes": str(GIB),
        "chunks_total": 64,
        "chunks_present": 64,
        "leases": 2,
        "last_used": TIME.format(5),
    }
    artifact = {
        "artifact_id": artifact_id,
        "image_bytes": str(GIB),
        "chunk_bytes": "16777216",
        "tensor_count": 272,
        "created": TIME.format(0),
        "keys": [name],
        "replica_count": 1,
        "origins": [{"node_id": f"id-of-{name}", "objects": [{"uri": f"/{name}", "bytes": str(GIB)}]}],
    }
    key = {"name": name, "artifact_id": artifact_id, "revision": "2", "updated": TIME.format(0), "keep": 2, "earlier": [{"artifact_id": artifact_id, "revision": "1", "bound": TIME.format(0)}]}
    all_zones = zones(1, 1, 1)
    all_zones["zones"][0]["zone"] = all_zones["zones"][0]["racks"][0]["rack"] = name
    all_zones["status"]["problems"] = [{"subject": name, "error": error}]
    task = {
        "task_id": name,
        "artifact_id": artifact_id,
        "node_name": name,
        "state": "REPLICATION_TASK_STATE_WAITING",
        "waiting_for": name,
        "error": error,
        "bytes": "1",
        "bytes_total": "2",
        "asked_by": name,
        "created": TIME.format(0),
    }
    moved = {**transfer(name), "error": error}
    status = {
        "global_store": name,
        "global_store_error": name,
        "pools": node(name)["pools"],
        "running_transfers": [transfer(name)],
        "recent_transfers": [moved],
        "servings": [{"grant_id": "g1", "replica_id": name, "artifact_id": artifact_id, "receiver_node_id": f"id-of-{name}", "lane": name, "bytes": "1", "requests": "1", "opened": TIME.format(0)}],
        "damaged_files": [{"path": name, "error": error}],
        "devices": [{"unhealthy": name}],
    }
    names = {f"id-of-{name}": name}
    entry = {"node_id": f"id-of-{name}", "node": name, "bytes_per_second": 1e9, "transfer": transfer(name)}
    hop = {"from": name, "to": "receiver", "lane": "tcp", "part": "fetch", "why": name, "silent": "", "steps": [name]}
    analysis = {
        "bound": {"part": "fetch", "why": name},
        "bounding_hop": hop,
        "seconds": {"total": 5, "queue": 1, "start": 0, "moving": 4, "starved": 0, "gaps": 0, "finish": 0},
        "hops": [{"node": "receiver", "known": True, "bytes_per_second": 1e9, "replica": "r", "problem": ""}, {"node": name, "known": False, "replica": "r", "problem": name}],
    }
    return {
        "zones": all_zones,
        "nodes": {"nodes": [node(name, name, name)], "total": 1},
        "node": {"node": node(name, name, name), "status": status, "replicas": [replica], "total": 1, "names": names, "keys": {artifact_id: [name]}, "problems": [{"subject": name, "error": error}]},
        "keys": {"keys": [key], "total": 1},
        "key": {
            "key": key,
            "revisions": [{"revision": 2, "artifact_id": artifact_id, "nodes": 1}],
            "nodes": [{"node_id": "n", "name": name, "zone": name, "rack": name, "revision": 1, "behind": 1}],
            "differences": [{"artifact_id": name, "base_revision": 1, "target_revision": 2, "image_bytes": 32 << 20, "whole_bytes": GIB}],
            "total": 1,
            "registered": 1,
        },
        "artifacts": {"artifacts": [artifact], "total": 1},
        "artifact": {"artifact": {**artifact, "replicas": [replica]}, "names": names, "total": 1},
        "transfers": {
            **swarm(0),
            "running": [entry],
            "recent": [{**entry, "transfer": moved}],
            "edges": [{"source": name, "receiver": f"{name}2", "lane": name, "transfers": 1, "bytes": GIB, "bytes_per_second": 1e9, "running": True}],
            "nodes": [{"node_id": "n", "name": name, "zone": name, "rack": name}],
            "problems": [{"subject": name, "error": error}],
        },
        "transfer": {"transfer": {**transfer(name), "trace_id": name}, "under_way": True, "analysis": analysis},
        "tasks": {"tasks": [task], "total": 1, "states": {"waiting": 1, "running": 0, "done": 0, "failed": 0}},
    }


def empty_views():
    """A cluster in which there is nothing yet."""
    nothing = every_view("node")
    return {
        "zones": {"zones": [], "nodes": 0, "not_asked": 0},
        "nodes": {"nodes": [], "total": 0},
        "node": {"node": nothing["node"]["node"], "problems": []},
        "keys": {"keys": [], "total": 0},
        "key": {"key": nothing["key"]["key"], "revisions": [], "nodes": [], "total": 0, "registered": 0},
        "artifacts": {"total": 0},
        "artifact": {"artifact": {"artifact_id": "tc2:x"}, "total": 0},
        "transfers": {**swarm(0), "nodes": []},
        "transfer": {
            "transfer": {"transfer_id": "t", "queued": TIME.format(0), "end": TIME.format(0), "destination": {"kind": "LOCATION_KIND_CPU"}},
            "under_way": True,
            "analysis": {"bound": {"part": "queue", "why": ""}, "bounding_hop": None, "seconds": {}, "hops": []},
        },
        "tasks": {"tasks": [], "total": 0},
    }
