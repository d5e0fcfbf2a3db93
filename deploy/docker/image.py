"""An image in one file, written and read without a container engine: an OCI image layout in a tar archive, with the manifest.json that
`docker load` reads. What a container of it starts is what the last stage of the Dockerfile says."""

import gzip
import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # what docker build sets
MANIFEST, INDEX, CONFIG, LAYER = (f"application/vnd.oci.image.{kind}" for kind in
                                  ("manifest.v1+json", "index.v1+json", "config.v1+json", "layer.v1.tar+gzip"))
# What one machine or one run left, what apt needs, and documentation other than copyright.
DROPPED = re.compile(r"""(dev|proc|run|sys|tmp|var/cache|var/log|var/tmp|var/lib/apt|etc/apt)/.+
    | etc/(hostname|machine-id|resolv\.conf|\.pwd\.lock|[^/]+-)
    | etc/dpkg/dpkg\.cfg\.d/99mmdebstrap
    | var/lib/dpkg/([^/]+-old|lock.*|triggers/Lock)
    | usr/share/(info|lintian|locale|man)/.+
    | usr/share/doc/(?!polysketch-server/)[^/]+/(?!copyright$).+""", re.VERBOSE)


def instructions(path):
    """(word, rest) of every instruction of a Dockerfile, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, rest = line.split(None, 1)
            yield word, rest.strip()


def configuration(path, **arguments):
    """The configuration of the image of a Dockerfile, as engines record it. The arguments replace its ARGs."""
    made = {}
    for word, rest in instructions(path):
        match word:
            case "FROM":
                made = {"Env": [PATH], "Labels": {}, "ExposedPorts": {}}
            case "LABEL":
                rest = re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], rest)
                made["Labels"] |= dict(label.split("=", 1) for label in shlex.split(rest))
            case "ENV":
                made["Env"] += shlex.split(rest)
            case "USER":
                made["User"] = rest
            case "EXPOSE":
                made["ExposedPorts"] |= {f"{port}/tcp": {} for port in rest.split()}
            case "STOPSIGNAL":
                made["StopSignal"] = rest
            case "ENTRYPOINT" | "CMD":
                made[word.capitalize()] = json.loads(rest)
            case "HEALTHCHECK":
                options, command = rest.split(" CMD ")
                times = [option.removeprefix("--").removesuffix("s").split("=") for option in options.split()]
                made["Healthcheck"] = {name.title().replace("-", ""): int(seconds) * 10**9 for name, seconds in times}
                made["Healthcheck"]["Test"] = ["CMD", *json.loads(command)]
            case "ARG" | "RUN" | "COPY" | "WORKDIR" | "ADD":
                pass  # of files
            case _:
                sys.exit(f"{path}: expected instructions that image.py knows, found {word}")
    return made


class Hashed:
    """A stream that hashes what goes through it."""

    def __init__(self, stream):
        self.stream, self.hash = stream, hashlib.sha256()

    def write(self, data):
        self.hash.update(data)
        return self.stream.write(data)


def write_layer(source, target, date):
    """Writes the files of the tar archive `source` as a layer to the stream `target`: what DROPPED names left out, in the order of names,
    nothing newer than the date. Returns the SHA-256 of the layer before compression."""
    with tarfile.open(source) as files, gzip.GzipFile("", "wb", 9, target, mtime=0) as compressed:
        hashed = Hashed(compressed)
        kept = {}
        for member in files:
            member.name = member.name.removeprefix("./")
            if member.name != "." and not DROPPED.fullmatch(member.name):
                kept[member.name] = member
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as layer:
            # A hard link follows the file that it names.
            for member in sorted(kept.values(), key=lambda member: (member.islnk(), member.name)):
                if [key for key in member.pax_headers if key.startswith("SCHILY.xattr")]:
                    sys.exit(f"expected files without extended attributes, found {member.name}")
                if member.islnk():
                    member.linkname = member.linkname.removeprefix("./")
                    if member.linkname not in kept:
                        sys.exit(f"expected the file of the hard link {member.name}, which is left out: {member.linkname}")
                member.mtime = min(int(member.mtime), date)
                member.pax_headers, member.uname, member.gname = {}, "", ""
                layer.addfile(member, files.extractfile(member) if member.isreg() else None)
    return hashed.hash.hexdigest()


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write(root, config, name, created, out):
    """Writes the archive `out` of the image `name` with the root of the tar archive `root`; `created` is a datetime in UTC."""
    layer = out.with_suffix(".layer")
    date = int(created.timestamp())
    with open(layer, "wb") as stream:
        hashed = Hashed(stream)
        diff = write_layer(root, hashed, date)
    layer_digest = hashed.hash.hexdigest()
    created = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    platform = {"architecture": "amd64", "os": "linux"}
    config = encoded(platform | {"config": config, "created": created, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
                                 "history": [{"created": created, "created_by": "deploy/docker/make-image"}]})
    blobs = {}

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    described = {"mediaType": CONFIG} | blob(config)
    manifest = encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": described,
                        "layers": [{"mediaType": LAYER, "digest": f"sha256:{layer_digest}", "size": layer.stat().st_size}]})
    names = {"io.containerd.image.name": f"docker.io/library/{name}", "org.opencontainers.image.ref.name": name.split(":")[1]}
    index = encoded({"schemaVersion": 2, "mediaType": INDEX,
                     "manifests": [{"mediaType": MANIFEST, "platform": platform, "annotations": names} | blob(manifest)]})
    layer_path = f"blobs/sha256/{layer_digest}"
    loaded = encoded([{"Config": f"blobs/sha256/{described['digest'][7:]}", "RepoTags": [name], "Layers": [layer_path]}])
    files = blobs | {"index.json": index, "manifest.json": loaded, "oci-layout": encoded({"imageLayoutVersion": "1.0.0"})}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted([*files, layer_path]):
            member = tarfile.TarInfo(path)
            member.mtime = date
            if path == layer_path:
                member.size = layer.stat().st_size
                with open(layer, "rb") as stream:
                    archive.addfile(member, stream)
            else:
                member.size = len(files[path])
                archive.addfile(member, io.BytesIO(files[path]))
    layer.unlink()


def read(archive, folder):
    """Unpacks the layers of the archive into the folder, and returns the image's configuration. Exits if index, manifests and digests
    disagree."""
    with tarfile.open(archive) as opened:
        names = {member.name for member in opened}

        def expect(condition, what):
            if not condition:
                sys.exit(f"{archive}: expected {what}")

        def blob(described):
            path = "blobs/" + described["digest"].replace(":", "/")
            expect(path in names, f"the blob {path}")
            names.remove(path)
            data = opened.extractfile(path).read()
            expect(hashlib.sha256(data).hexdigest() == path.rsplit("/", 1)[1] and len(data) == described["size"], f"{path} with its digest and size")
            return path, data

        def document(path):
            names.remove(path)
            return json.load(opened.extractfile(path))

        expect(document("oci-layout") == {"imageLayoutVersion": "1.0.0"}, "an OCI image layout")
        (described,) = document("index.json")["manifests"]
        manifest = json.loads(blob(described)[1])
        config_path, config = blob(manifest["config"])
        config = json.loads(config)
        layers = [blob(layer) for layer in manifest["layers"]]
        (loaded,) = document("manifest.json")
        expect((loaded["Config"], loaded["Layers"]) == (config_path, [path for path, _ in layers]), "the same image in manifest.json")
        expect(not names, f"no other files, found {names}")
    files = [gzip.decompress(data) for _, data in layers]
    expect(config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in files], "the digests of the layers")
    for data in files:
        subprocess.run(["tar", "--extract", "--numeric-owner", "--preserve-permissions", "--directory", folder], input=data, check=True)
    return config


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("image.py ARCHIVE FOLDER: unpacks the image into the folder and writes its configuration to standard output")
    json.dump(read(*sys.argv[1:]), sys.stdout)
