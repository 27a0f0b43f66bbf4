"""A SparkSession with settings that were measured to help, and with settings that governed sources need."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.home import own_home
from penstock.spark.idle import end_planners_first
from penstock.spark.java import find_java
from penstock.vocabulary.errors import InvalidInputError, MissingExtraError, UnknownNameError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.spark import SparkConfig

LOG_LEVELS = ("ALL", "DEBUG", "ERROR", "FATAL", "INFO", "OFF", "TRACE", "WARN")
SMALLEST_MEMORY_MB = 512  # Spark refuses a driver below 450 MB

_LOG_PROPERTIES = Path(__file__).with_name("log4j2.properties")
_MB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}


@dataclass(frozen=True, slots=True)
class RequiredSetting:
    """A setting that a governed source cannot do without.

    Attributes:
        name: The setting's name in Spark.
        value: The value that the setting must have.
        why: What goes wrong with another value, as a clause.
    """

    name: str
    value: str
    why: str


REQUIRED = (
    RequiredSetting(
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "false",
        "empty micro-batches run outside the gate",
    ),
)
"""Required settings. All can be set on a running session; a query reads them when it starts."""


def session(
    app: str = "penstock",
    master: str = "local[*]",
    cores: int | None = None,
    memory: str = "2g",
    log_level: str = "ERROR",
    local_files: bool | None = None,
    **conf: object,
) -> SparkSession:
    """Builds a SparkSession for governed queries, or returns the running session if it suits them.

    Memory and other options of the JVM come from the first session of a process, because Spark keeps its JVM.

    Args:
        app: The application's name.
        master: Where Spark runs.
        cores: Cores of `local[*]`, or of the whole cluster; by default all cores of the machine, or the
            cluster's own setting.
        memory: The driver's heap; in local mode that is all of Spark's memory.
        log_level: Level from which Spark's log is shown on stderr.
        local_files: Whether checkpoints are on a local disk; by default in local mode only.
        conf: Settings of Spark, which win over ours: `session(**{"spark.ui.enabled": True})`.

    Raises:
        InvalidInputError: An argument is wrong, no Java was found, or the running session does not suit.
    """
    chosen = {name: _text(value) for name, value in conf.items()}
    settings = session_settings(app, master, cores, memory, log_level, local_files, chosen)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("a Spark session", "pyspark", "spark") from None
    running = _running_session()
    if running is not None:
        check_session(running, chosen)
        return running
    with _environment(local=master.startswith("local")):
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    if "spark.log.level" not in chosen:
        # For a JVM that was started before. The setting spark.log.level would print a line on stderr.
        spark.sparkContext.setLogLevel(log_level.upper())
    if _has_local_files(master, local_files) and "spark.hadoop.fs.file.impl" not in chosen:
        _write_no_checksum_files(spark)
    _quiet_end(spark)
    end_planners_first(spark)
    return spark


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Redirects, to a file, standard error of processes that start inside: the JVM and its Python workers."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def check_session(spark: SparkSession, chosen: Mapping[str, str] | None = None) -> None:
    """Refuses a running session that lacks required settings, or the chosen settings."""
    chosen = chosen or {}
    for setting in unmet_settings(spark):
        if setting.name not in chosen:
            raise InvalidInputError(
                f"{setting.name} must be {setting.value} in a session with governed queries: {setting.why}",
                spark.conf.get(setting.name),
                f"spark.conf.set({setting.name!r}, {setting.value!r}), or build it with penstock.session()",
            )
    for name, value in chosen.items():
        got = spark.conf.get(name, None)
        if got != value:
            raise InvalidInputError(
                f"{name} must be {value} as asked, but a session runs already in this process",
                "no value" if got is None else got,
                "stop that session first, or leave the setting out",
            )


def unmet_settings(spark: SparkSession) -> list[RequiredSetting]:
    """Required settings that a session does not have."""
    return [setting for setting in REQUIRED if spark.conf.get(setting.name) != setting.value]


def adopt_session(spark: SparkSession) -> list[RequiredSetting]:
    """Sets required settings that a session lacks, for queries that start from now on; returns them."""
    unmet = unmet_settings(spark)
    for setting in unmet:
        spark.conf.set(setting.name, setting.value)
    check_session(spark)
    return unmet


def session_settings(
    app: str,
    master: str,
    cores: int | None,
    memory: str,
    log_level: str,
    local_files: bool | None,
    chosen: Mapping[str, str],
) -> dict[str, str]:
    """The settings with which `session` starts Spark; the chosen settings come last and win."""
    _check_names(chosen)
    _check_memory(memory)
    level = log_level.upper()
    if level not in LOG_LEVELS:
        raise UnknownNameError("log_level", log_level, LOG_LEVELS)
    master, cores = _place(master, cores)
    local = master.startswith("local")
    settings = {
        "spark.app.name": app,
        "spark.master": master,
        "spark.driver.memory": memory,
        # A Connect client has no JVM beside it; the control plane's socket is on this host.
        "spark.api.mode": "classic",
        # Empty micro-batches would run outside the gate.
        **{setting.name: setting.value for setting in REQUIRED},
        # Small batches took 0.21 s instead of 0.29 s.
        "spark.python.unix.domain.socket.enabled": "true",
        # Timestamps mean the same wherever a query runs; the source's Arrow timestamps are UTC.
        "spark.sql.session.timeZone": "UTC",
        # A governed process often runs beside others, so it takes no port and no memory for Spark's pages.
        "spark.ui.enabled": "false",
        # The progress bar writes over the user's terminal.
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.defaultJavaOptions": _java_options(level, chosen),
        # Not set: spark.sql.execution.arrow.maxRecordsPerBatch, as a source's record batches pass uncut.
    }
    if cores is not None:
        # Each partition of a small batch costs a task: the default of 200 takes seconds.
        settings["spark.sql.shuffle.partitions"] = str(cores)
    if local:
        # A host name that does not resolve, or a VPN, would stop the start; and no port faces the network.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Stopping a query inside a batch then prints no traceback. Not on a cluster: there the daemon may
        # start before Penstock is copied to the machine with the first task.
        settings["spark.python.daemon.module"] = "penstock.spark.daemon"
    if _has_local_files(master, local_files):
        # Spark's default forks chmod and readlink four times for each entry of its logs; this class, once.
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
    return {**settings, **chosen}


def _has_local_files(master: str, local_files: bool | None) -> bool:
    return master.startswith("local") if local_files is None else local_files


def _quiet_end(spark: SparkSession) -> None:
    """Prints no traceback if the JVM closes the connection of its accumulators before PySpark does."""
    server = spark.sparkContext._accumulatorServer
    say = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            say(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _write_no_checksum_files(spark: SparkSession) -> None:
    """Stops Hadoop from writing a .crc beside each local file, which costs another fork of chmod.

    RawLocalFileSystem in `fs.file.impl` would do so too, but RocksDB state and `textFile` fail with it.
    """
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration()).setWriteChecksum(False)


def _java_options(level: str, chosen: Mapping[str, str]) -> str:
    options = [
        # Without it Spark announces its default log profile and warns through every start.
        f"-Dlog4j2.configurationFile={_LOG_PROPERTIES.as_uri()}",
        f"-Dpenstock.log.level={level}",
    ]
    if not re.search(r"-XX:\+Use\w+GC\b", chosen.get("spark.driver.extraJavaOptions", "")):
        options.append("-XX:+UseParallelGC")  # faster small batches; a second collector would stop the JVM
    return " ".join(options)


def _place(master: str, cores: int | None) -> tuple[str, int | None]:
    """The master with its cores written out, and the number of cores if it is known."""
    if cores is not None and cores < 1:
        raise InvalidInputError("cores must be a positive number", cores, "leave it out to use all")
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if not match:
        return master, cores
    if match[1] == "*":
        cores = cores or len(os.sched_getaffinity(0))
        return master.replace("*", str(cores)), cores
    own = int(match[1] or 1)
    if cores not in (None, own):
        raise InvalidInputError(f"master {master} has {own} cores", f"cores={cores}", "use master='local[*]'")
    return master, own


def _check_names(chosen: Mapping[str, str]) -> None:
    for name in chosen:
        if not name.startswith("spark."):
            raise InvalidInputError(
                "a Spark setting's name begins with 'spark.'",
                repr(name),
                "session() itself takes app, master, cores, memory, log_level, local_files",
            )


def _check_memory(memory: str) -> None:
    match = re.fullmatch(r"(\d+)([kmgt])b?", memory.lower())
    if not match or int(match[1]) * _MB[match[2]] < SMALLEST_MEMORY_MB:
        raise InvalidInputError(
            f"memory is at least {SMALLEST_MEMORY_MB} MB, as a number and a unit", repr(memory), "use '2g'"
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _running_session() -> SparkSession | None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def pipeline_session(config: SparkConfig, app: str, log_level: str = "ERROR") -> SparkSession:
    """The session that a pipeline's section `spark` asks for."""
    conf: dict[str, Any] = dict(config.settings)
    return session(app, config.master, config.cores, config.memory, log_level, **conf)


@contextmanager
def _environment(local: bool) -> Iterator[None]:
    """Sets the variables that Spark's launcher reads; those that name folders are restored afterwards."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if local or name not in os.environ:  # workers with another Python lack our packages
            os.environ[name] = sys.executable
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit: the JVM runs already
        yield
        return
    folders = {"JAVA_HOME": find_java(os.environ).home}
    if local and "SPARK_HOME" not in os.environ and (home := own_home()) is not None:
        folders["SPARK_HOME"] = home
    before = {name: os.environ.get(name) for name in folders}
    os.environ.update({name: str(folder) for name, folder in folders.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
