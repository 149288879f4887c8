"""The Ledger: what a campaign did, as records in and records out, within one transaction of a Store.

Nothing here commits; `Store.transaction` does, at its end. Every method may raise StoreUnavailable (a full
disk, a locked or lost database). What was recorded is never replaced: a second record under the same id or
number, and any change of a finished experiment, raises AlreadyRecorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, Executable, Table, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from feedback.observations import Measurement
from feedback.signals import Signal
from infra_agent.domain import Campaign, Event, Experiment, ModelCall, ModelUse, NoiseUnits, Reservation, State, now
from infra_agent.errors import AlreadyRecorded, NotFound
from infra_agent.lessons import Lesson
from infra_agent.store import rows, tables
from infra_agent.store.artefacts import StoredArtefact
from infra_agent.store.failures import translated

_CONTENT = {"sha256", "size_bytes", "media_type"}
"""Fields of a StoredArtefact that tell of its content, not of its place in a run."""
_OF_THE_RUN = {"case", "lost"}
"""Fields that only its `run.json` keeps: what is lost has no content, and signals name the case."""
_OF_A_SAMPLE = set(Measurement.model_fields) & set(tables.sample.c.keys())
"""What is stored of a Measurement; the rest holds only for files that were not measured in pairs."""
_FINISHED = [state.value for state in State if state.is_finished]


class Ledger:
    """Reads and writes records on one open connection; made by `Store.transaction`."""

    def __init__(self, connection: Connection, place: str) -> None:
        self._connection = connection
        self._place = place

    def add_campaign(self, campaign: Campaign) -> None:
        """Store a new campaign."""
        self._write(tables.campaign.insert(), rows.campaign_row(campaign))

    def update_campaign(self, campaign: Campaign) -> None:
        """Replace a campaign's fields, but for the script: that was fixed at the start, and may be long.

        Raises NotFound when it is not stored.
        """
        row = rows.campaign_row(campaign)
        del row["script"]
        table = tables.campaign
        if not self._write(table.update().where(table.c.id == campaign.id), row).rowcount:
            raise NotFound(f"no campaign {campaign.id}; `infra-agent list` shows those that exist")

    def campaign(self, campaign_id: str) -> Campaign:
        """The campaign with this id, or whose id alone begins or ends so, or the newest for `latest`.

        Raises NotFound when there is none, or more than one.
        """
        table = tables.campaign
        newest_first = select(table).order_by(table.c.created_at.desc(), table.c.id.desc())
        if campaign_id == "latest":
            found = self._rows(newest_first.limit(1))
        else:
            starts = table.c.id.startswith(campaign_id, autoescape=True)
            ends = table.c.id.endswith(campaign_id, autoescape=True)
            found = self._rows(newest_first.where(or_(starts, ends))) if campaign_id else []
            found = [row for row in found if row["id"] == campaign_id] or found
        if not found:
            raise NotFound(self._instead_of(campaign_id))
        if len(found) > 1:
            ids = ", ".join(row["id"] for row in found[:5])
            raise NotFound(f"{len(found)} campaigns match {campaign_id!r} ({ids}, …); give more of the id")
        return rows.read_campaign(found[0])

    def _instead_of(self, name: str) -> str:
        """What to type instead of a name that no campaign has: often it is that of a target."""
        table = tables.campaign
        of_target = select(table.c.id).where(table.c.target_name == PurePath(name).name)
        ids = [row["id"] for row in self._rows(of_target.order_by(table.c.created_at.desc(), table.c.id.desc()))]
        if not ids:
            return f"no campaign {name!r}; `infra-agent list` shows those that exist"
        more = ", …" if len(ids) > 5 else ""
        return (
            f"{name!r} is a target, not a campaign; its campaigns, newest first, are {', '.join(ids[:5])}{more}. "
            f"Give one of these: `infra-agent show {ids[0]}`"
        )

    def campaigns(self) -> tuple[Campaign, ...]:
        """All campaigns, newest first."""
        table = tables.campaign
        found = self._rows(select(table).order_by(table.c.created_at.desc(), table.c.id.desc()))
        return tuple(rows.read_campaign(row) for row in found)

    def add_experiment(self, experiment: Experiment) -> None:
        """Store a new experiment in any state, with its hypothesis and signals.

        Raises AlreadyRecorded when its id, or its number within the campaign, is taken, and NotFound when its
        campaign is not stored.
        """
        self._write(tables.experiment.insert(), rows.experiment_row(experiment))
        self._write(tables.hypothesis.insert(), rows.hypothesis_row(experiment))
        self._write_all(tables.signal, rows.signal_rows(experiment))

    def update_experiment(self, experiment: Experiment) -> None:
        """Replace an unfinished experiment's fields. Its outcome goes through `finish_experiment`.

        Raises:
            ValueError: the new state is a finished one.
            AlreadyRecorded: the stored experiment is finished.
            NotFound: it is not stored.
        """
        if experiment.state.is_finished:
            raise ValueError(f"{experiment.id} is {experiment.state}: use finish_experiment")
        self._replace(experiment)

    def finish_experiment(
        self,
        experiment: Experiment,
        samples: Sequence[Measurement] = (),
        artefacts: Sequence[StoredArtefact] = (),
    ) -> None:
        """Store an experiment's outcome with the raw measurements and artefacts behind it, once and for good.

        Raises:
            ValueError: the experiment's state is not a finished one.
            AlreadyRecorded: it was finished before; what is stored stays as it is.
            NotFound: it was never added.
        """
        if not experiment.state.is_finished:
            raise ValueError(f"{experiment.id} is {experiment.state}: only complete or pruned is an outcome")
        self._replace(experiment)
        owner = {"experiment_id": experiment.id}
        self._write_all(tables.sample, [owner | sample.model_dump(include=_OF_A_SAMPLE) for sample in samples])
        added = {"created_at": now()}
        contents = {a.sha256: added | a.model_dump(include=_CONTENT) for a in artefacts}
        self._write_new(tables.artefact, list(contents.values()))
        places = [owner | a.model_dump(exclude=(_CONTENT - {"sha256"}) | _OF_THE_RUN) for a in artefacts]
        self._write_all(tables.experiment_artefact, places)

    def experiment(self, experiment_id: str) -> Experiment:
        """The experiment with this id. Raises NotFound."""
        found = self._experiments(tables.experiment.c.id == experiment_id)
        if not found:
            raise NotFound(f"no experiment {experiment_id}")
        return found[0]

    def experiments(self, campaign_id: str) -> tuple[Experiment, ...]:
        """All experiments of a campaign by number; none when there is no such campaign."""
        return self._experiments(tables.experiment.c.campaign_id == campaign_id)

    def samples(self, experiment_id: str) -> tuple[Measurement, ...]:
        """The raw measurements of an experiment in the order they were given."""
        table = tables.sample
        query = select(*(table.c[name] for name in sorted(_OF_A_SAMPLE)))
        found = self._rows(query.where(table.c.experiment_id == experiment_id).order_by(table.c.id))
        return tuple(Measurement.model_validate(row) for row in found)

    def artefacts(self, experiment_id: str) -> tuple[StoredArtefact, ...]:
        """The kept artefacts of an experiment by path."""
        place, content = tables.experiment_artefact, tables.artefact
        query = select(place, content.c.size_bytes, content.c.media_type).join(content)
        found = self._rows(query.where(place.c.experiment_id == experiment_id).order_by(place.c.path))
        kept = StoredArtefact.model_fields.keys() - _OF_THE_RUN
        return tuple(StoredArtefact.model_validate({name: row[name] for name in kept}) for row in found)

    def record_model_call(self, call: ModelCall) -> ModelCall:
        """Store an answer before it is acted on. Returns the call that stands: an earlier one with the same
        request, if there is one, so that whoever comes second acts on the same answer."""
        self._write_new(tables.model_call, [call.model_dump()])
        return self.model_call(call.campaign_id, call.request_hash) or call

    def model_call(self, campaign_id: str, request_hash: str) -> ModelCall | None:
        """The recorded answer to this request within a campaign, or None."""
        table = tables.model_call
        calls = self._model_calls(table.c.campaign_id == campaign_id, table.c.request_hash == request_hash)
        return calls[0] if calls else None

    def model_calls(self, campaign_id: str) -> tuple[ModelCall, ...]:
        """All recorded model calls of a campaign in order."""
        return self._model_calls(tables.model_call.c.campaign_id == campaign_id)

    def call_uses(self, campaign_id: str) -> tuple[tuple[datetime, int, float], ...]:
        """When each call to a model was recorded, its tokens and its duration in seconds, in order; without the long
        texts of the calls."""
        table = tables.model_call
        columns = (table.c.created_at, table.c.prompt_tokens, table.c.completion_tokens, table.c.duration_s)
        found = self._rows(select(*columns).where(table.c.campaign_id == campaign_id).order_by(table.c.id))
        return tuple(
            (row["created_at"], row["prompt_tokens"] + row["completion_tokens"], row["duration_s"]) for row in found
        )

    def add_reservation(self, reservation: Reservation) -> Reservation:
        """Store what a request may cost, before it goes out; returns it with its id."""
        key = self._write(
            tables.model_reservation.insert(), reservation.model_dump(exclude={"id"})
        ).inserted_primary_key
        return reservation.model_copy(update={"id": key[0] if key else 0})

    def close_reservation(self, reservation: Reservation) -> None:
        """Store what a request did cost, once and for good.

        Raises ValueError for an open one, AlreadyRecorded when the stored one is not open any more.
        """
        if reservation.state == "open":
            raise ValueError("a reservation is closed by settling or releasing it")
        table = tables.model_reservation
        still_open = table.update().where(table.c.id == reservation.id, table.c.state == "open")
        if not self._write(still_open, reservation.model_dump(exclude={"id"})).rowcount:
            raise AlreadyRecorded(f"model reservation {reservation.id} is closed; what it cost never changes")

    def reservations(self, campaign_id: str) -> tuple[Reservation, ...]:
        """All reservations of a campaign in order."""
        table = tables.model_reservation
        query = select(table).where(table.c.campaign_id == campaign_id)
        return tuple(Reservation.model_validate(row) for row in self._rows(query.order_by(table.c.id)))

    def model_use(self, campaign_id: str) -> ModelUse:
        """What a campaign's model calls add up to so far."""
        return ModelUse.total(self.reservations(campaign_id))

    def add_noise_units(self, units: NoiseUnits) -> None:
        """Store A/A units. Storing the same record again (same place and `measured_at`) adds nothing."""
        fields = units.model_dump(exclude={"units"})
        values = [fields | {"position": index, "value": value} for index, value in enumerate(units.units)]
        self._write_new(tables.noise_unit, values)

    def forget_noise_units(self, host: str, target: str, probe: str, metric: str) -> int:
        """Delete all A/A units of a metric on a host; returns how many there were."""
        table = tables.noise_unit
        mine = (table.c.host_fingerprint == host, table.c.target_name == target)
        of_metric = (table.c.probe == probe, table.c.metric == metric)
        return self._write(table.delete().where(*mine, *of_metric)).rowcount

    def noise_units(self, host: str, target: str, probe: str, metric: str, max_age: timedelta) -> NoiseUnits | None:
        """All A/A units of a metric on a host that are not older than `max_age`, oldest first, or None.

        `measured_at` is that of the oldest of them. Units in another direction than the newest are left out.
        """
        table = tables.noise_unit
        query = select(table).where(
            table.c.host_fingerprint == host,
            table.c.target_name == target,
            table.c.probe == probe,
            table.c.metric == metric,
            table.c.measured_at >= now() - max_age,
        )
        found = self._rows(query.order_by(table.c.measured_at, table.c.position))
        if not found:
            return None
        kept = [row for row in found if row["direction"] == found[-1]["direction"]]
        fields = {name: kept[0][name] for name in NoiseUnits.model_fields if name != "units"}
        return NoiseUnits.model_validate(fields | {"units": tuple(row["value"] for row in kept)})

    def add_event(self, campaign_id: str, type: str, data: Mapping[str, object] | None = None) -> Event:
        """Append to a campaign's log; returns the event with its id. `data` is kept as JSON, NaN as null."""
        event = Event(campaign_id=campaign_id, type=type, data=dict(data or {}))
        row = event.model_dump(mode="json", exclude={"id", "created_at"}) | {"created_at": event.created_at}
        key = self._write(tables.event.insert(), row).inserted_primary_key
        return event.model_copy(update={"id": key[0] if key else 0})

    def events(self, campaign_id: str, after: int = 0) -> tuple[Event, ...]:
        """A campaign's events whose id is greater than `after`, in order."""
        table = tables.event
        query = select(table).where(table.c.campaign_id == campaign_id, table.c.id > after)
        return tuple(Event.model_validate(row) for row in self._rows(query.order_by(table.c.id)))

    def add_lesson(self, lesson: Lesson) -> None:
        """Store what an experiment taught. A second lesson of the same experiment adds nothing."""
        self._write_new(tables.lesson, [rows.lesson_row(lesson)])

    def lessons(self, target: str | None = None) -> tuple[Lesson, ...]:
        """All lessons, or those of targets of that name, newest first."""
        table = tables.lesson
        query = select(table) if target is None else select(table).where(table.c.target_name == target)
        found = self._rows(query.order_by(table.c.created_at.desc(), table.c.id.desc()))
        return tuple(rows.read_lesson(row) for row in found)

    def lesson(self, lesson_id: str) -> Lesson:
        """The lesson with this id, or whose id alone begins or ends so. Raises NotFound when none or several do."""
        table = tables.lesson
        starts, ends = (match(lesson_id, autoescape=True) for match in (table.c.id.startswith, table.c.id.endswith))
        found = self._rows(select(table).where(or_(starts, ends))) if lesson_id else []
        found = [row for row in found if row["id"] == lesson_id] or found
        if not found:
            raise NotFound(f"no lesson {lesson_id!r}; `infra-agent lessons` lists those that exist")
        if len(found) > 1:
            ids = ", ".join(row["id"] for row in found[:5])
            raise NotFound(f"{len(found)} lessons match {lesson_id!r} ({ids}); give more of the id")
        return rows.read_lesson(found[0])

    def edit_lesson(self, lesson_id: str, text: str, by: str) -> Lesson:
        """Put a person's words in place of the machine's; what was measured stays. Raises NotFound."""
        found, table = self.lesson(lesson_id), tables.lesson
        values = {"text": text, "edited_by": by, "edited_at": now()}
        self._write(table.update().where(table.c.id == found.id), values)
        return found.model_copy(update=values)

    def delete_lesson(self, lesson_id: str) -> Lesson:
        """Delete a lesson; returns it. Campaigns that were told of it keep what they were told. Raises NotFound."""
        found, table = self.lesson(lesson_id), tables.lesson
        self._write(table.delete().where(table.c.id == found.id))
        return found

    def tell_lessons(self, campaign_id: str, lessons: Sequence[Lesson]) -> None:
        """Fix, once and for good, what a campaign is told of: lessons as they are now, in this order."""
        told = [rows.lesson_text(lesson) for lesson in lessons]
        values = [{"campaign_id": campaign_id, "position": n, "lesson": text} for n, text in enumerate(told)]
        self._write_all(tables.campaign_lesson, values)

    def told_lessons(self, campaign_id: str) -> tuple[Lesson, ...]:
        """What a campaign was told of when it began."""
        table = tables.campaign_lesson
        query = select(table.c.lesson).where(table.c.campaign_id == campaign_id).order_by(table.c.position)
        return tuple(Lesson.model_validate(row["lesson"]) for row in self._rows(query))

    def _experiments(self, condition: ColumnElement[bool]) -> tuple[Experiment, ...]:
        table, hypothesis, signal = tables.experiment, tables.hypothesis, tables.signal
        signals: defaultdict[str, list[Signal]] = defaultdict(list)
        of_experiments = select(signal).join(table).where(condition)
        for row in self._rows(of_experiments.order_by(signal.c.experiment_id, signal.c.position)):
            signals[row["experiment_id"]].append(rows.read_signal(row))
        with_hypothesis = select(table, hypothesis).join(hypothesis).where(condition)
        found = self._rows(with_hypothesis.order_by(table.c.number))
        return tuple(rows.read_experiment(row, signals[row["id"]]) for row in found)

    def _model_calls(self, *conditions: ColumnElement[bool]) -> tuple[ModelCall, ...]:
        table = tables.model_call
        query = select(*(table.c[name] for name in ModelCall.model_fields)).where(*conditions)
        return tuple(ModelCall.model_validate(row) for row in self._rows(query.order_by(table.c.id)))

    def _replace(self, experiment: Experiment) -> None:
        """Update an experiment's rows unless the stored one is finished; check and write are one."""
        table, hypothesis, signal = tables.experiment, tables.hypothesis, tables.signal
        unfinished = table.update().where(table.c.id == experiment.id, table.c.state.not_in(_FINISHED))
        if not self._write(unfinished, rows.experiment_row(experiment)).rowcount:
            stored = self.experiment(experiment.id)
            message = f"experiment {stored.number} ({stored.id}) is {stored.state}; its outcome never changes"
            raise AlreadyRecorded(message)
        mine = hypothesis.c.experiment_id == experiment.id
        self._write(hypothesis.update().where(mine), rows.hypothesis_row(experiment))
        self._write(signal.delete().where(signal.c.experiment_id == experiment.id))
        self._write_all(signal, rows.signal_rows(experiment))

    def _rows(self, query: Executable) -> list[rows.Row]:
        with translated(self._place):
            return [row._asdict() for row in self._connection.execute(query)]

    def _write(self, statement: Executable, values: rows.Row | list[rows.Row] | None = None) -> CursorResult[Any]:
        with translated(self._place):
            result = self._connection.execute(statement, values)
        assert isinstance(result, CursorResult)
        return result

    def _write_all(self, table: Table, values: list[rows.Row]) -> None:
        if values:
            self._write(table.insert(), values)

    def _write_new(self, table: Table, values: list[rows.Row]) -> None:
        """Insert the rows whose key is not there yet."""
        if values:
            insert = sqlite.insert if self._connection.dialect.name == "sqlite" else postgresql.insert
            self._write(insert(table).on_conflict_do_nothing(), values)
